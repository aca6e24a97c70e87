"""What a checkpoint can do, measured by cedar in exact mode: bits per byte of held-out text beside xz -9, needle and
copy tasks, and how much each mechanism is worth.

    evaluate.py MODEL --corpus CORPUS.xz --out RESULTS.json [--cedar ./cedar] [--backend cpu|cuda] [--arith f32|bf16]

An ablation is an edited checkpoint: the engine runs it as any other.
  window     "sliding_window" 1: a row's window is the row itself
  global     latents of all KV sources are zero and "index_topk" is 1: one key that says nothing is left
  engram     the value rows of the Engram projections are zero
  indexer    the head weights of all indexers are zero: the scores are equal, and the first entries are picked
"""
import argparse
import csv
import io
import json
import lzma
import math
import os
import shutil
import subprocess
import tempfile

import numpy as np

import data
import export

MECHANISMS = ("window", "global", "engram", "indexer")


# --- asking the engine ------------------------------------------------------------------------------------------------

class Engine:
    """cedar score with a model."""

    def __init__(self, cedar, backend, arith):
        self.words = [cedar, "score", "--backend", backend, "--arith", arith]

    def score(self, directory, sequences, rows=False):
        """One dict of the CSV per sequence; rows: one list of dicts per sequence."""
        with tempfile.TemporaryDirectory() as d:
            files = [os.path.join(d, f"{k}.bin") for k in range(len(sequences))]
            for file, ids in zip(files, sequences):
                ids.astype("<i4").tofile(file)
            words = self.words + ["--model", directory] + (["--rows"] if rows else []) + files
            out = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        lines = list(csv.DictReader(io.StringIO(out)))
        return [[l for l in lines if l["file"] == f] for f in files] if rows else lines


def text_sequences(documents, most, length):
    """Held-out documents up to `most` bytes in pieces of `length` tokens -> sequences, their bytes joined."""
    sequences, used = [], b""
    for text in documents:
        for at in range(0, len(text), length - 1):
            if len(used) >= most:
                return sequences, used
            piece = text[at:at + length - 1][:most - len(used)]
            sequences.append(data.tokens([(piece, 1.)])[0])
            used += piece
    return sequences, used


def bits_per_byte(engine, directory, sequences, size):
    nats = sum(float(r["nats"]) for r in engine.score(directory, sequences))
    return nats / math.log(2) / size


def tasks(documents, kind, count, length):
    """(ids, which tokens are the answer) of made tasks."""
    out = []
    for k in range(count):
        rng = np.random.default_rng([99, data.KINDS.index(kind), k])
        if kind == "needle":
            parts = data.needle(rng, documents, length - 100, count=1, depths=[(k + .5) / count])
        else:
            parts = data.copy(rng, documents, length, blocks=1, far=True)
        ids, weights = data.tokens(parts)
        assert len(ids) <= length + 100, len(ids)
        out.append((ids, weights >= 4))
    return out


def solved(engine, directory, made):
    """Share of tasks whose every answer token is the most likely one."""
    right = 0
    for (ids, answer), rows in zip(made, engine.score(directory, [ids for ids, _ in made], rows=True)):
        right += all(r["token"] == r["likeliest"] for r in rows if answer[int(r["position"])])
    return right / len(made)


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

def measure(a):
    """All numbers as a dict."""
    corpus, engine = data.Corpus(a.corpus), Engine(a.cedar, a.backend, a.arith)
    sequences, used = text_sequences(corpus.held, a.bytes, a.length)
    made = {kind: tasks(corpus.held, kind, a.tasks, a.task_length) for kind in ("needle", "copy")}
    version = subprocess.run([a.cedar, "--version"], stdout=subprocess.PIPE, text=True)
    xz = 8 * len(lzma.compress(used, preset=9)) / len(used)
    r = {"model": os.path.basename(os.path.normpath(a.model)), "backend": a.backend, "arith": a.arith,
         "bytes": len(used), "sequence_tokens": a.length, "xz9_bits_per_byte": xz, "tasks": a.tasks,
         "task_tokens": a.task_length, "version": version.stdout.strip()}
    small, small_used = text_sequences(corpus.held, min(a.bytes, a.ablation_bytes), a.length)
    with tempfile.TemporaryDirectory() as d:
        for mechanism in ("", *MECHANISMS):
            directory = os.path.join(d, mechanism) if mechanism else a.model
            if mechanism:
                ablate(a.model, directory, mechanism)
            each = {"ablation_bits_per_byte": bits_per_byte(engine, directory, small, len(small_used))}
            if not mechanism:
                each["bits_per_byte"] = bits_per_byte(engine, directory, sequences, len(used))
            count = a.ablation_tasks if mechanism else a.tasks
            each.update({kind: solved(engine, directory, m[:count]) for kind, m in made.items() if count})
            r["without " + mechanism if mechanism else "whole"] = each
            print(mechanism or "whole", json.dumps(each), flush=True)
    r["ablation_bytes"], r["ablation_tasks"] = len(small_used), a.ablation_tasks
    return r


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
    a.add_argument("--ablation-bytes", type=int, default=200_000)
    a.add_argument("--length", type=int, default=8192, help="tokens of a sequence of text")
    a.add_argument("--tasks", type=int, default=100, help="of each kind")
    a.add_argument("--ablation-tasks", type=int, default=30, help="0: ablations are measured by bits per byte alone")
    a.add_argument("--task-length", type=int, default=4096)
    a = a.parse_args()
    results = measure(a)
    with open(a.out, "w") as f:
        json.dump(results, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
