"""Writes the card of a trained model; every figure comes from a file that a measurement wrote.

    card.py MODEL --manifest CORPUS.json --log DIR/log.jsonl --results RESULTS.json [--ablations RESULTS.json]
            [--check CHECK.txt] [--step-tokens 32768] [--conditions TEXT]

MODEL/README.md is written, when all files are there and whole. A number that was not measured is not written.
"""
import argparse
import json
import os

MECHANISMS = ("window", "global", "engram", "indexer")
TASKS = ("needle", "copy")


def read(path, parse):
    """What a file holds; one that is cut off is named."""
    with open(path) as f:
        try:
            return parse(f.read())
        except ValueError as e:
            raise SystemExit(f"card.py: {path}: {e}") from None


def read_lines(path):
    return read(path, lambda text: [json.loads(line) for line in text.splitlines()])


def read_results(path, names):
    """Results of evaluate.py, which must hold these parts."""
    r = read(path, json.loads)
    if "unfinished" in r:
        raise SystemExit(f"card.py: {path}: the results are unfinished; let evaluate.py end")
    for name in names:
        if name not in r:
            raise SystemExit(f"card.py: {path}: \"{name}\" is missing; evaluate.py writes it")
    return r


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


def between(f, form):
    """An interval; one document has none."""
    return "no interval" if f["low"] is None else f"{form(f['low'])} to {form(f['high'])}"


def measured_with(r):
    return f"{r['backend']}, {r['arith']}; {r['version'].split(', built')[0]}"


def results_part(r, ablated):
    bits, loss, percent = "{:.3f}".format, "{:+.3f}".format, lambda x: f"{100 * x:.0f} %"
    solved = lambda f: f"{f['right']} of {f['of']} ({between(f, percent)})"
    whole, some = r["whole"], ablated["without " + MECHANISMS[0]]
    text = whole["bits_per_byte"]
    rows = [("what", "measured (95 %)"),
            (f"bits per byte, {text['documents']:,} held-out documents, {text['bytes']:,} bytes in sequences of at "
             f"most {r['sequence_tokens']:,} tokens", f"{bits(text['value'])} ({between(text, bits)})"),
            ("xz -9 on the same bytes, joined", bits(r["xz9_bits_per_byte"]))]
    rows += [(f"{kind} tasks of {r['task_tokens']:,} tokens solved", solved(whole[kind]))
             for kind in TASKS if kind in whole]
    kinds = [k for k in TASKS if k in some]
    table_of = [("without", "bits per byte", "loss (95 %)", *(f"{kind} tasks solved (95 %)" for kind in kinds))]
    for name in MECHANISMS:
        e = ablated["without " + name]
        table_of.append((name, bits(e["bits_per_byte"]["value"]), f"{loss(e['loss']['value'])} "
                         f"({between(e['loss'], loss)})", *(solved(e[kind]) for kind in kinds)))
    of = f"{some['loss']['documents']:,} of the documents, {some['loss']['bytes']:,} bytes"
    return f"""## What it can do

Measured with `cedar score` in exact mode ({measured_with(r)}) by
`tools/train/evaluate.py`. Intervals: bootstrap over documents, Wilson for tasks.

{table(rows)}

Without a mechanism (an edited checkpoint; {measured_with(ablated)}),
on {of}; the loss is against the whole model on the same bytes:

{table(table_of)}"""


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
    a.add_argument("--ablations", help="results of another run that the ablations are taken from")
    a.add_argument("--check", help="what check.py printed")
    a.add_argument("--step-tokens", type=int, default=32768, help="train.py's --tokens")
    a.add_argument("--conditions", default="", help="one sentence: date, commit, machine, command")
    a = a.parse_args()
    mechanisms = ["without " + name for name in MECHANISMS]
    results = read_results(a.results, ["whole"] if a.ablations else ["whole", *mechanisms])
    ablated = read_results(a.ablations, mechanisms) if a.ablations else results
    size = sum(os.path.getsize(os.path.join(a.model, f)) for f in os.listdir(a.model) if f != "README.md")
    name = os.path.basename(os.path.normpath(a.model))
    parts = [f"# {name}: a small trained model of the DeepSeek-V4.1 architecture\n\n"
             f"{size / 1e6:.1f} MB, FP8 dense weights, FP4 experts. {a.conditions}".rstrip(),
             data_part(read(a.manifest, json.loads)), training_part(read_lines(a.log), a.step_tokens),
             results_part(results, ablated)]
    if a.check:
        parts.append("## The export\n\n```\n" + open(a.check).read().strip() + "\n```")
    parts.append(limits_part(read(os.path.join(a.model, "config.json"), json.loads)))
    with open(os.path.join(a.model, "README.md"), "w") as f:
        f.write("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    try:
        main()
    except OSError as e:
        raise SystemExit(f"card.py: {e}") from None
