#!/usr/bin/python3
"""The CPU engine against the independent oracle on random model shapes (slow: minutes).

    tests/slow_oracle.py [--count 24] [--first 0] [--checker "./cedar check-golden"] [--keep DIR]

For each shape the oracle (tests/oracle, needs numpy) makes a checkpoint and golden vectors in a temporary folder: every
case in double, and the traces once more with bf16 rounding. The engine must reproduce the first without a mismatch in
`wide`, follow its decisions with near-ties only in `f32`, stay within what bf16 rounding explains on them in `bf16`, and
reproduce the second one block deep in `bf16`.
Prints one line per shape. Exit code 0: all agree; 2: some do not; 5: something is missing.
"""
import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "oracle"))


def check(checker, directory, arith):
    """Runs the checker. Returns None, or its last lines."""
    p = subprocess.run(checker + [directory, "--arith", arith], cwd=ROOT, capture_output=True, text=True)
    return None if p.returncode == 0 else (p.stdout + p.stderr).strip().splitlines()[-12:]


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--count", type=int, default=24)
    a.add_argument("--first", type=int, default=0)
    a.add_argument("--checker", default="./cedar check-golden")
    a.add_argument("--keep", help="write the directories here and keep them")
    a = a.parse_args()
    try:
        import random_shapes
    except ImportError as e:
        print(f"slow_oracle: {e}; Debian has it as python3-numpy", file=sys.stderr)
        return 5
    checker = shlex.split(a.checker)
    if not os.path.exists(os.path.join(ROOT, checker[0])) and not shutil.which(checker[0]):
        print(f"slow_oracle: no program {checker[0]}; run `make` first, or name one with --checker", file=sys.stderr)
        return 5
    bad = 0
    out = a.keep or tempfile.mkdtemp(prefix="cedar-oracle-")
    try:
        for k in range(a.first, a.first + a.count):
            name = random_shapes.describe(random_shapes.write_shape(k, out))
            d = os.path.join(out, f"{k:03d}")
            runs = {arith: check(checker, d, arith) for arith in ("wide", "f32", "bf16")}
            runs["bf16 ref"] = check(checker, d + "-ref", "bf16")
            failed = {arith: lines for arith, lines in runs.items() if lines is not None}
            print(f"{k:03d} {'FAIL' if failed else 'ok'}   {name}", flush=True)
            for arith, lines in failed.items():
                print("".join(f"      {arith}: {line}\n" for line in lines), end="", flush=True)
            bad += bool(failed)
            if not a.keep:
                shutil.rmtree(d)
                shutil.rmtree(d + "-ref")
    finally:
        if not a.keep:
            shutil.rmtree(out, ignore_errors=True)
    print(f"{a.count - bad} shapes agree, {bad} do not")
    return 2 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
