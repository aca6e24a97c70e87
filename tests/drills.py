#!/usr/bin/env python3
"""Drills of several ranks: rank 1 of 2 fails, stalls, comes late or differs in step 5 of a run.

    tests/drills.py [--cedar CEDAR] [--out FOLDER] [OPTION=VALUE...] [WHAT...]      (from the root of the tree)

A drill passes when the run ends within 10 s of the fault with the exit status and the sentence that name it, and its
database is whole: integrity, the four steps before the fault, and a run that says why it failed. Prints a line a drill;
exit status 0 only when all pass. Options go to the run (backend=cuda; default backend=cpu). Two ranks that share a GPU
need CUDA_MODULE_LOADING=EAGER in the environment.
"""
import argparse
import os
import re
import sqlite3
import subprocess
import sys
import time

LIMIT_S = 10
GIVE_UP_S = 600                 # a program that hangs
DRILLS = {                      # exit status, and what the last sentence must say
    "fail": (3, r"rank 1 of 2 failed at step 5"),
    "stall": (3, r"rank 1 of 2 stalled at step 5: .*; rank 1 of 2 has not come back, so the memory"),
    "late": (3, r"rank 1 of 2 stalled at step 5: "),
    "differ": (4, r"rank 1 of 2 has other results than rank 0 at step 5"),
}


def command(args, db):
    return [args.cedar, "run", "-q", "-r", "tests/e2e.lua", "-o", db, "gpus=2", "backend=cpu"] + args.options


def timed(command_line, environment):
    start = time.monotonic()
    run = subprocess.run(command_line, env=environment, capture_output=True, text=True, check=False, timeout=GIVE_UP_S)
    return run, time.monotonic() - start


def seconds_undisturbed(args):
    """Opening a large model may take longer than any drill."""
    try:
        run, took_s = timed(command(args, os.path.join(args.out, "none.db")) + ["turns_max=1"], os.environ)
    except OSError as e:
        sys.exit(f"drills: --cedar {args.cedar} cannot be run: {e.strerror}")
    except subprocess.TimeoutExpired:
        sys.exit(f"drills: an undisturbed run has not ended after {GIVE_UP_S} s")
    if run.returncode:
        sys.exit(f"drills: an undisturbed run fails: {run.stderr.strip()}")
    return took_s


def database_faults(db):
    if not os.path.exists(db):
        return ["there is no database"]
    d = sqlite3.connect(db)
    try:
        integrity = d.execute("PRAGMA integrity_check").fetchone()[0]
        steps = d.execute("SELECT count(*) FROM steps").fetchone()[0]
        status, error = d.execute("SELECT status, error FROM runs").fetchone() or (None, None)
    except sqlite3.Error as e:
        return [f"the database cannot be read: {e}"]
    finally:
        d.close()
    faults = []
    if integrity != "ok":
        faults.append(f"the database is damaged: {integrity}")
    if steps != 4:
        faults.append(f"{steps} steps are there, not 4")
    if status != "failed" or not re.search(r"rank 1 of 2.*step 5", error or ""):
        faults.append(f"the run says {status}: {error}")
    return faults


def drill(args, what, begin_s):
    db = os.path.join(args.out, f"rank-{what}.db")
    try:
        run, took_s = timed(command(args, db), dict(os.environ, CEDAR_RANK_FAULT=f"1:5:{what}"))
    except subprocess.TimeoutExpired:
        print(f"{what}: it has not ended after {GIVE_UP_S} s", flush=True)
        return False
    status, sentence = DRILLS[what]
    faults = []
    if run.returncode != status:
        faults.append(f"exit status {run.returncode}, not {status}")
    if not re.search(sentence, run.stderr):
        faults.append(f"it said: {run.stderr.strip()}")
    if took_s > LIMIT_S + begin_s:
        faults.append(f"it took {took_s - begin_s:.1f} s longer than an undisturbed run")
    faults += database_faults(db)
    print(f"{what}: {'; '.join(faults) or 'ok'}, {took_s:.1f} s (undisturbed, one turn: {begin_s:.1f} s)", flush=True)
    return not faults


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cedar", default="./cedar")
    p.add_argument("--out", default="build/drills")
    p.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(DRILLS)}; default all")
    args = p.parse_args()
    args.options = [w for w in args.what if "=" in w]
    what = [w for w in args.what if "=" not in w] or list(DRILLS)
    unknown = [w for w in what if w not in DRILLS]
    if unknown:
        p.error(f"there is no drill {unknown[0]}; there are {', '.join(DRILLS)}")
    os.makedirs(args.out, exist_ok=True)
    begin_s = seconds_undisturbed(args)
    passed = [drill(args, w, begin_s) for w in what]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
