"""Compares the training code with the engine: logits of the same tokens from an exported checkpoint.

    check.py MODEL [--cedar ./cedar] [--tokens 1024] [--corpus CORPUS.xz] [--arith wide]

Both run on the CPU. In `wide` (float64, only the model's own quantisers round) every logit must agree to 1e-6 of the
largest: anything else is a difference of the two programs. In `f32` and `bf16`, decisions near a border fall
differently, so the mean KL divergence of the training code from the engine in `wide` is compared with the noise that
the engine itself has in the same arithmetic, and may be twice that. Exit code 1 when something differs.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

import data
import export
import model as architecture

TIMES_NOISE = 2


def engine_logits(cedar, directory, ids, arith, vocab):
    """Logits [T, V] of the engine in exact mode."""
    with tempfile.TemporaryDirectory() as d:
        tokens, out = os.path.join(d, "tokens.bin"), os.path.join(d, "logits.bin")
        ids.astype("<i4").tofile(tokens)
        words = [cedar, "score", "--model", directory, "--backend", "cpu", "--arith", arith, "--logits", out, tokens]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return np.fromfile(out, "<f4").reshape(-1, vocab)


def load(directory, mode):
    """The model of a checkpoint directory."""
    shape = architecture.Shape(os.path.join(directory, "config.json"))
    path = os.path.join(directory, "token_map.bin")
    token_map = np.fromfile(path, "<i4") if os.path.exists(path) else \
        np.arange(shape.vocab_size) % shape.engram_compressed_vocab_size
    m = architecture.Model(shape, token_map, mode=mode)
    m.w = {n: w.to(m.real) for n, w in architecture.stack_experts(shape, export.decoded(directory)).items()}
    return m


@torch.no_grad()
def training_logits(directory, ids, mode):
    """Logits [T, V] of the training code."""
    m = load(directory, mode)
    w = m.c.sliding_window
    padded = np.concatenate([ids, np.zeros(-len(ids) % w, ids.dtype)])
    return m.forward(torch.from_numpy(padded).long()[None])[0][0, :len(ids)].double().numpy()


def divergence(p, q):
    """KL of softmax(q) from softmax(p) per row, nats."""
    log = lambda x: x - x.max(1, keepdims=True) - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True))
    p, q = log(p.astype(np.float64)), log(q.astype(np.float64))
    return (np.exp(p) * (p - q)).sum(1)


def compare(cedar, directory, ids, arith, exact):
    """Prints one line; whether the two agree. exact: the engine's logits in wide."""
    a, b = exact, training_logits(directory, ids, arith)
    far, kl, same = np.abs(a - b).max() / np.abs(a).max(), divergence(a, b).mean(), (a.argmax(1) == b.argmax(1)).mean()
    noise = divergence(a, engine_logits(cedar, directory, ids, arith, a.shape[1])).mean()
    good = far <= 1e-6 if arith == "wide" else kl <= TIMES_NOISE * noise
    print(f"training in {arith} against the engine in wide: {len(ids)} rows, farthest logit {far:.1e} of the largest, "
          f"mean KL {kl:.1e} (the engine's own in {arith}: {noise:.1e}), same most likely token {100 * same:.2f} %: "
          f"{'agree' if good else 'DIFFER'}", flush=True)
    return good


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("--cedar", default="./cedar")
    a.add_argument("--tokens", type=int, default=1024)
    a.add_argument("--corpus", help="held-out text of this corpus; without, random tokens")
    a.add_argument("--arith", nargs="+", default=["wide", "f32", "bf16"], choices=("wide", "f32", "bf16"))
    a = a.parse_args()
    rng = np.random.default_rng(11)
    vocab = architecture.Shape(os.path.join(a.model, "config.json")).vocab_size
    ids = rng.integers(0, vocab, a.tokens).astype(np.int32)
    if a.corpus:
        ids = data.tokens(data.text_parts(rng, data.Corpus(a.corpus).held, a.tokens))[0][:a.tokens]
    exact = engine_logits(a.cedar, a.model, ids, "wide", vocab)
    sys.exit(0 if all([compare(a.cedar, a.model, ids, k, exact) for k in a.arith]) else 1)


if __name__ == "__main__":
    main()
