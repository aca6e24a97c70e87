"""What a checkpoint can do, measured by cedar in exact mode: bits per byte of held-out text beside xz -9, needle and
copy tasks, and how much each mechanism is worth.

    evaluate.py MODEL --corpus CORPUS.xz --out RESULTS.json [--cedar ./cedar] [--backend cpu|cuda] [--arith f32|bf16]

An ablation is an edited checkpoint: the engine runs it as any other.
  window     "sliding_window" 1: a row's window is the row itself
  global     latents of all KV sources are zero and "index_topk" is 1: one key that says nothing is left
  engram     the value rows of the Engram projections are zero
  indexer    the head weights of all indexers are zero: the scores are equal, and the first entries are picked

Intervals are for 95 %: of bits per byte and of the loss without a mechanism a bootstrap over documents (of the loss
paired: the same bytes with and without it), of tasks Wilson's. RESULTS.json is written anew while it goes on; until
all is measured, "unfinished" is true in it.
"""
import argparse
import csv
import itertools
import json
import lzma
import math
import os
import shutil
import subprocess
import tempfile
import time

import numpy as np

import data
import export

MECHANISMS = ("window", "global", "engram", "indexer")
TASKS = ("needle", "copy")
RESAMPLES = 10_000
PAUSE_S = 10            # between two lines of progress


# --- asking the engine ------------------------------------------------------------------------------------------------

class Engine:
    """cedar score with a model."""

    def __init__(self, cedar, backend, arith):
        self.words = [cedar, "score", "--backend", backend, "--arith", arith, "--rows"]

    def score(self, directory, sequences):
        """From one start of cedar, each sequence as it comes: (nats of tokens 1.., whether each was the likeliest)."""
        with tempfile.TemporaryDirectory() as d:
            files = [os.path.join(d, f"{k}.bin") for k in range(len(sequences))]
            for file, ids in zip(files, sequences):
                ids.astype("<i4").tofile(file)
            words = self.words + ["--model", directory] + files
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
                lines = csv.reader(running.stdout)
                next(lines, None)
                for _, rows in itertools.groupby(lines, lambda row: row[0]):
                    _, _, token, likeliest, logp = zip(*rows)
                    yield -np.array(logp, float), np.array(token) == np.array(likeliest)
            if running.returncode:
                raise SystemExit(f"evaluate.py: cedar score failed with {running.returncode}")


class Text:
    """Held-out documents up to `most` bytes in pieces of `length` tokens: ids, bytes and document of each piece."""

    def __init__(self, documents, most, length):
        self.ids, self.sizes, self.document, used = [], [], [], b""
        for k, text in enumerate(documents):
            for at in range(0, len(text), length - 1):
                piece = text[at:at + length - 1][:most - len(used)]
                if piece:
                    self.ids.append(data.tokens([(piece, 1.)])[0])
                    self.sizes.append(len(piece))
                    self.document.append(k)
                    used += piece
        if not used:
            raise SystemExit("evaluate.py: the corpus has no held-out text, or --bytes asks for none")
        self.xz = 8 * len(lzma.compress(used, preset=9)) / len(used)

    def pieces_of(self, size):
        """How many pieces from the first on have `size` bytes or more; all, when there are fewer."""
        return min(int(np.searchsorted(np.cumsum(self.sizes), size)) + 1, len(self.sizes))


def tasks(documents, kind, count, length):
    """(ids, which tokens from 1 on are the answer) of made tasks."""
    out = []
    for k in range(count):
        rng = np.random.default_rng([99, data.KINDS.index(kind), k])
        if kind == "needle":
            parts = data.needle(rng, documents, length - 100, count=1, depths=[(k + .5) / count])
        else:
            parts = data.copy(rng, documents, length, blocks=1, far=True)
        ids, weights = data.tokens(parts)
        assert len(ids) <= length + 100, len(ids)
        out.append((ids, weights[1:] >= 4))
    return out


# --- figures with their intervals -------------------------------------------------------------------------------------

def ratio(sums, sizes, documents):
    """Sum over sum of pieces of documents, with a bootstrap over the documents; one document has no interval."""
    documents = np.unique(documents, return_inverse=True)[1]
    sums, sizes = np.bincount(documents, sums), np.bincount(documents, sizes)
    if len(sizes) < 2:
        return {"value": sums.sum() / sizes.sum(), "low": None, "high": None, "documents": len(sizes)}
    picks = np.random.default_rng(17).integers(len(sizes), size=(RESAMPLES, len(sizes)))
    low, high = np.percentile(sums[picks].sum(1) / sizes[picks].sum(1), (2.5, 97.5))
    return {"value": sums.sum() / sizes.sum(), "low": low, "high": high, "documents": len(sizes)}


def bits(nats, sizes, documents):
    """Bits a byte of pieces of documents."""
    return ratio(np.asarray(nats) / math.log(2), sizes, documents) | {"bytes": int(sum(sizes))}


def share(right, of):
    """A share with its Wilson interval."""
    p, z = right / of, 1.959964
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    low, high = ((middle + side * half) / (1 + z * z / of) for side in (-1, 1))
    return {"right": right, "of": of, "low": max(low, 0.), "high": min(high, 1.)}


def summary(scored, made, text, whole=None):
    """Figures of what was scored so far: tasks, then pieces of text. whole: nats of the pieces with every mechanism."""
    r, at = {}, 0
    for kind, those in made.items():
        right = [bool(ok[answer].all()) for (_, ok), (_, answer) in zip(scored[at:], those)]
        at += len(those)
        if right:
            r[kind] = share(sum(right), len(right))
    nats = np.array([n.sum() for n, _ in scored[at:]])
    if len(nats):
        of = text.sizes[:len(nats)], text.document[:len(nats)]
        r["bits_per_byte"] = bits(nats, *of)
        if whole is not None:
            r["loss"] = bits(nats - whole[:len(nats)], *of)
    return r


# --- ablations --------------------------------------------------------------------------------------------------------

def ablate(directory, out, mechanism):
    """Writes the checkpoint without a mechanism."""
    shutil.copytree(directory, out)
    with open(os.path.join(out, "config.json")) as f:
        config = json.load(f)
    text = config["text_config"]
    if mechanism == "window":
        text["sliding_window"] = 1
    if mechanism == "global":
        text["index_topk"] = 1
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    for file in sorted(os.listdir(out)):
        if file.endswith(".safetensors"):
            export.edit_safetensors(os.path.join(out, file),
                                    lambda name, a: zero(name, a, mechanism, text["hidden_size"]))


def zero(name, a, mechanism, hidden):
    """Clears what the mechanism needs of a tensor, in place; whether anything was."""
    if mechanism == "global" and name.endswith("compressor.norm.weight"):
        a[...] = 0
    elif mechanism == "engram" and name.endswith("engram.wkv.weight"):
        a[-hidden:] = 0
    elif mechanism == "indexer" and name.endswith("indexer.weights_proj.weight"):
        a[...] = 0
    else:
        return False
    return True


# --- the whole --------------------------------------------------------------------------------------------------------

def write(path, results):
    """Whole or not at all: a run may be cut off at any moment."""
    with open(path + ".new", "w") as f:
        json.dump(results, f, indent=1)
        f.write("\n")
    os.replace(path + ".new", path)


def score_all(engine, directory, made, text, pieces, show):
    """All tasks, then so many pieces of text; show(what was scored) now and then."""
    sequences = [ids for those in made.values() for ids, _ in those] + text.ids[:pieces]
    scored, shown = [], time.monotonic()
    for one in engine.score(directory, sequences):
        scored.append(one)
        if time.monotonic() - shown > PAUSE_S:
            show(scored, len(sequences))
            shown = time.monotonic()
    return scored


def measure(a):
    """Writes all numbers to a.out, and while it goes on what there is."""
    try:
        corpus = data.Corpus(a.corpus)
    except (lzma.LZMAError, ValueError) as e:
        raise SystemExit(f"evaluate.py: {a.corpus}: {e}") from None
    engine = Engine(a.cedar, a.backend, a.arith)
    text = Text(corpus.held, a.bytes, a.length)
    made = {kind: tasks(corpus.held, kind, a.tasks, a.task_length) for kind in TASKS}
    version = subprocess.run([a.cedar, "--version"], check=True, stdout=subprocess.PIPE, text=True)
    r = {"model": os.path.basename(os.path.normpath(a.model)), "backend": a.backend, "arith": a.arith,
         "sequence_tokens": a.length, "task_tokens": a.task_length, "version": version.stdout.strip(),
         "xz9_bits_per_byte": text.xz, "unfinished": True}
    started, whole = time.monotonic(), None
    with tempfile.TemporaryDirectory() as d:
        for mechanism in ("", *MECHANISMS):
            directory, name, pieces = a.model, "whole", len(text.ids)
            if mechanism:
                directory, name, pieces = os.path.join(d, mechanism), "without " + mechanism, \
                    text.pieces_of(a.ablation_bytes)
                ablate(a.model, directory, mechanism)
                made = {kind: those[:a.ablation_tasks] for kind, those in made.items()}

            def show(scored, of):
                r[name] = summary(scored, made, text, whole)
                write(a.out, r)
                print(f"{time.monotonic() - started:.0f} s, {name}, {len(scored)} of {of} sequences:",
                      json.dumps(r[name]), flush=True)

            scored = score_all(engine, directory, made, text, pieces, show)
            show(scored, len(scored))
            if not mechanism:
                whole = np.array([nats.sum() for nats, _ in scored[-pieces:]])
    r["seconds"] = time.monotonic() - started
    del r["unfinished"]
    write(a.out, r)


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("--corpus", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--cedar", default="./cedar")
    a.add_argument("--backend", default="cpu")
    a.add_argument("--arith", default="f32")
    a.add_argument("--bytes", type=int, default=2_000_000, help="of held-out text")
    a.add_argument("--ablation-bytes", type=int, default=200_000, help="of them for an ablation, in whole sequences")
    a.add_argument("--length", type=int, default=8192, help="tokens of a sequence of text")
    a.add_argument("--tasks", type=int, default=100, help="of each kind")
    a.add_argument("--ablation-tasks", type=int, default=30, help="0: ablations are measured by bits per byte alone")
    a.add_argument("--task-length", type=int, default=4096)
    measure(a.parse_args())


if __name__ == "__main__":
    try:
        main()
    except OSError as e:
        raise SystemExit(f"evaluate.py: {e}") from None
