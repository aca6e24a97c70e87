"""Documents for an audit (its option `documents`): held-out text in turns, and agent transcripts over held-out text.

    documents.py CORPUS.xz OUT.json [--texts 40] [--transcripts 40] [--turns 4] [--tokens 4000] [--answer 1/8]

A text is cut into turns of equal length; the end of each, an eighth or what --answer says, is the forced answer. In a
transcript, the answers are what the assistant writes, several calls and their results to a turn. Both kinds are spread
over the file, so that its first documents are some of each.
"""
import argparse
import fractions
import json

import numpy as np

import data


def text(name, content, turns, tokens, share):
    """One held-out document; share: of a turn, that is its answer."""
    ids = data.tokens([(content[:tokens - 1], 1.)])[0]
    ends = [len(ids) * (k + 1) // turns for k in range(turns)]
    prompts = [e - int(len(ids) // turns * share) for e in ends]
    return {"name": name[-60:], "tokens": ids.tolist(), "prompts": prompts, "ends": ends}


def transcript(name, documents, seed, turns, tokens):
    """One made transcript: every (messages / turns)-th answer of the assistant ends a turn."""
    ids = data.tokens(data.agent(np.random.default_rng([31, seed]), documents, tokens))[0][:tokens]
    answers = [(int(s) + 1, int(s) + 1 + int(np.argmax(ids[s:] == data.END)))
               for s in np.flatnonzero(ids == data.ASSISTANT) if (ids[s:] == data.END).any()]
    chosen = [answers[(k + 1) * len(answers) // turns - 1] for k in range(turns)] if len(answers) >= turns else answers
    return {"name": name, "tokens": ids.tolist(), "prompts": [a for a, _ in chosen], "ends": [b for _, b in chosen]}


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("corpus")
    a.add_argument("out")
    a.add_argument("--texts", type=int, default=40)
    a.add_argument("--transcripts", type=int, default=40)
    a.add_argument("--turns", type=int, default=4)
    a.add_argument("--tokens", type=int, default=4000)
    a.add_argument("--answer", type=fractions.Fraction, default=fractions.Fraction(1, 8), help="share of a text's turn")
    a = a.parse_args()
    corpus = data.Corpus(a.corpus)
    long = [(n, t) for n, t in zip(corpus.held_names, corpus.held) if len(t) >= min(a.tokens, 2000)]
    texts = [text(n, t, a.turns, a.tokens, a.answer) for n, t in long[:a.texts]]
    scripts = [transcript(f"transcript-{k}", corpus.held, k, a.turns, a.tokens) for k in range(a.transcripts)]
    made = [d for _, d in sorted((((k + .5) / len(kind), d) for kind in (texts, scripts) for k, d in enumerate(kind)),
                                  key=lambda p: p[0])]
    with open(a.out, "w") as f:
        json.dump({"documents": made}, f)
    scored = sum(e for d in made for e in d["ends"][-1:])
    print(f"{a.out}: {len(made)} documents, {sum(len(d['ends']) for d in made)} turns, {scored} tokens")


if __name__ == "__main__":
    main()
