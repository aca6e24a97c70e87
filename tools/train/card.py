"""Writes the card of a trained model; every figure comes from a file that a measurement wrote.

    card.py MODEL --manifest CORPUS.json --log DIR/log.jsonl --results RESULTS.json [--check CHECK.txt]
            [--step-tokens 32768] [--conditions TEXT]

MODEL/README.md is written. A number that was not measured is not written.
"""
import argparse
import json
import os

MECHANISMS = ("window", "global", "engram", "indexer")


def table(rows):
    return "\n".join(["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
                     + ["| " + " | ".join(map(str, r)) + " |" for r in rows[1:]])


def data_part(manifest):
    rows = [("package of Debian 12", "licence of the text", "documents", "MB")]
    rows += [(f"`{p['file']}`", p["licence"], f"{p['documents']:,}", f"{p['bytes'] / 1e6:.1f}")
             for p in manifest["packages"]]
    return f"""## Data

{table(rows)}

{manifest['train_documents']:,} documents ({manifest['train_bytes'] / 1e6:.1f} MB) to learn from,
{manifest['held_documents']} ({manifest['held_bytes'] / 1e6:.2f} MB) held out, split by document. Corpus sha256
`{manifest['corpus_sha256']}`. Beside the text: agent transcripts, needle, copy and counting tasks, made from seeds by
`tools/train/data.py`."""


def training_part(log, step_tokens):
    losses = [l for l in log if "loss" in l]
    end = next((l for l in reversed(log) if "held_out_bpb" in l), None)
    if not losses:
        return "## Training\n\nThe log has no step."
    last, steps = losses[-1], log[-1]["step"]
    lines = [("what", "measured"), ("steps", f"{steps:,}"), ("seconds, with compiling and the export",
             f"{log[-1]['seconds']:,.0f}"), ("tokens", f"{steps * step_tokens / 1e6:,.1f} million"),
             ("tokens a second, last", f"{last['tokens_s']:,}"),
             ("loss of text, last, nats a byte", f"{last['plain']:.3f}"),
             ("indexer's KL, last, nats", f"{last['index']:.3f}")]
    if end:
        lines.append(("held-out bits per byte by the training code", f"{end['held_out_bpb']:.3f}"))
    return "## Training\n\n" + table(lines)


def results_part(r):
    head = f"""## What it can do

Measured with `cedar score` in exact mode ({r['backend']}, {r['arith']}; {r['version'].splitlines()[0]}) by
`tools/train/evaluate.py`."""
    whole = r["whole"]
    rows = [("what", "measured"),
            (f"bits per byte, {r['bytes']:,} bytes of held-out text, sequences of {r['sequence_tokens']:,} tokens",
             f"{whole['bits_per_byte']:.3f}"), ("xz -9 on the same bytes, joined", f"{r['xz9_bits_per_byte']:.3f}")]
    rows += [(f"{kind} tasks of {r['task_tokens']:,} tokens solved, of {r['tasks']}", f"{100 * whole[kind]:.0f} %")
             for kind in ("needle", "copy")]
    kinds = ("needle", "copy") if r["ablation_tasks"] else ()
    ablations = [("without", f"bits per byte ({r['ablation_bytes']:,} bytes)", *kinds)]
    for name in ("whole", *("without " + m for m in MECHANISMS)):
        e = r[name]
        ablations.append((name.replace("without ", "") if name != "whole" else "nothing",
                          f"{e['ablation_bits_per_byte']:.3f}", *(f"{100 * e[kind]:.0f} %" for kind in kinds)))
    end = f"\n\nAblated: {r['ablation_tasks']} tasks of each kind." if kinds else ""
    return f"{head}\n\n{table(rows)}\n\n{table(ablations)}{end}"


def limits_part(config):
    t = config["text_config"]
    return f"""## What it cannot do

It is a model of bytes with {t['num_hidden_layers']} layers and a window of {t['sliding_window']}, trained for minutes
so that replay meets weights that use their window, their global KV and their indexer. It answers no questions beyond
the tasks above, knows no facts worth relying on, and what bounded replay costs it need not be what it costs
a large model."""


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("--manifest", required=True)
    a.add_argument("--log", required=True)
    a.add_argument("--results", required=True)
    a.add_argument("--check", help="what check.py printed")
    a.add_argument("--step-tokens", type=int, default=32768, help="train.py's --tokens")
    a.add_argument("--conditions", default="", help="one sentence: date, commit, machine, command")
    a = a.parse_args()
    load = lambda path: json.load(open(path))
    size = sum(os.path.getsize(os.path.join(a.model, f)) for f in os.listdir(a.model) if f != "README.md")
    name = os.path.basename(os.path.normpath(a.model))
    parts = [f"# {name}: a small trained model of the DeepSeek-V4.1 architecture\n\n"
             f"{size / 1e6:.1f} MB, FP8 dense weights, FP4 experts. {a.conditions}".rstrip(),
             data_part(load(a.manifest)), training_part([json.loads(l) for l in open(a.log)], a.step_tokens),
             results_part(load(a.results))]
    if a.check:
        parts.append("## The export\n\n```\n" + open(a.check).read().strip() + "\n```")
    parts.append(limits_part(load(os.path.join(a.model, "config.json"))))
    with open(os.path.join(a.model, "README.md"), "w") as f:
        f.write("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
