"""Mean KL of the arms of scenarios/audit-small.lua, texts and transcripts apart; of two models, side by side.

    compare.py AUDIT.db [OTHER.db]

The arms under test, not the controls. Intervals are for 95 %, by a bootstrap over documents; of the difference of two
models a paired one, since both play the same documents: a document's KL is drawn with both models' values.
"""
import argparse
import sqlite3
import urllib.parse

import numpy as np

import card
import evaluate

GROUPS = {"all": lambda name: True, "texts": lambda name: not name.startswith("transcript-"),
          "transcripts": lambda name: name.startswith("transcript-")}


def first_audit(db):
    """{arm: {(document, its name): (positions, sum of KL)}} of the first audit, which must have ended well."""
    arms, found = {}, db.execute("SELECT status FROM audits ORDER BY audit_id LIMIT 1").fetchone()
    if found != ("finished",):
        raise ValueError(f"the first audit is {found[0]}" if found else "has no audit")
    for arm, doc, name, positions, kl in db.execute("""
            SELECT a.label, p.doc, t.doc_name, COUNT(*), SUM(p.kl_pq) FROM audit_positions p
            JOIN audit_arms a USING (audit_id, arm_id) JOIN audit_turns t USING (audit_id, arm_id, doc, turn)
            WHERE audit_id = (SELECT MIN(audit_id) FROM audits) AND a.control = ''
            GROUP BY a.arm_id, p.doc ORDER BY a.arm_id, p.doc"""):
        arms.setdefault(arm, {})[doc, name] = positions, kl
    return arms


def read(path):
    """As first_audit; what is wrong is said of the file."""
    try:
        with sqlite3.connect(f"file:{urllib.parse.quote(path)}?mode=ro", uri=True) as db:
            return first_audit(db)
    except (sqlite3.Error, ValueError) as e:
        raise SystemExit(f"compare.py: {path}: {e}") from None


def line(what, f):
    return f"{what} {f['value']:.3g} ({card.between(f, '{:.3g}'.format)})"


def compare(one, other):
    """Lines of text: each arm and group of one audit, and what the other one differs by."""
    for arm in other or ():
        if other[arm].keys() != one.get(arm, {}).keys():
            raise SystemExit(f"compare.py: the audits do not play the same documents with arm {arm}")
    for arm, documents in one.items():
        for group, has in GROUPS.items():
            those = [k for k in documents if has(k[1])]
            if not those:
                continue
            n, a = np.array([documents[k] for k in those]).T
            each = range(len(those))
            text = line(f"{arm}, {group}: {len(those)} documents, {int(n.sum())} positions, mean KL",
                        evaluate.ratio(a, n, each))
            if other:
                m, b = np.array([other.get(arm, {}).get(k, (0, 0)) for k in those]).T
                if not np.array_equal(n, m):
                    raise SystemExit(f"compare.py: the audits do not score the same positions of arm {arm}")
                text += line("; other", evaluate.ratio(b, n, each)) + \
                    line("; other less first", evaluate.ratio(b - a, n, each))
            yield text


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("audit")
    a.add_argument("other", nargs="?")
    a = a.parse_args()
    for text in compare(read(a.audit), read(a.other) if a.other else None):
        print(text)


if __name__ == "__main__":
    main()
