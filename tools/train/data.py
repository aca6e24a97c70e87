"""What the model reads: text of Debian packages, and tasks made from seeds.

    data.py fetch CACHE                 download and unpack the packages of PACKAGES (apt-get, no root needed)
    data.py build CACHE CORPUS.xz       documents, without what was seen before, in one compressed file
    data.py show CORPUS.xz KIND         one made document, to look at

Tokens are bytes: id = byte + 8. Ids 0 to 7: begin, end, padding, the drafter's noise, user, assistant, tool, unused.
A batch is a pure function of (seed, step, length), whatever process makes it.
"""
import argparse
import hashlib
import html.parser
import json
import lzma
import pathlib
import re
import subprocess
import sys

import numpy as np

BEGIN, END, PAD, NOISE, USER, ASSISTANT, TOOL, BYTE, VOCAB = 0, 1, 2, 3, 4, 5, 6, 8, 264
SPECIALS = ("<|begin|>", "<|end|>", "<|pad|>", "<|noise|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|unused|>")

# Debian 12: package -> (licence of the text that is taken, endings, most megabytes)
PACKAGES = {
    "golang-1.19-src": ("BSD-3-Clause", (".go",), 24),
    "libpython3.11-stdlib": ("PSF-2.0", (".py",), 8),
    "libpython3.11-testsuite": ("PSF-2.0", (".py",), 10),
    "python3.11-doc": ("PSF-2.0", (".rst.txt",), 12),
    "python-sqlalchemy-doc": ("MIT", (".rst",), 6),
    "cmake-doc": ("BSD-3-Clause", (".rst.txt",), 4),
    "postgresql-doc-15": ("PostgreSQL", (".html",), 10),
    "sqlite3-doc": ("public domain", (".html",), 10),
    "nodejs-doc": ("MIT", (".html",), 8),
    "python-django-doc": ("BSD-3-Clause", (".html",), 8),
    "python3-django": ("BSD-3-Clause", (".py",), 6),
    "python3-networkx": ("BSD-3-Clause", (".py",), 6),
    "python3-pandas": ("BSD-3-Clause", (".py",), 8),
    "python3-sqlalchemy": ("MIT", (".py",), 7),
    "python3-sympy": ("BSD-3-Clause", (".py",), 10),
    "python3-twisted": ("MIT", (".py",), 10),
}
DOC_BYTES = 60_000          # longer files are cut here
HELD_OUT = 60               # one document of so many
KINDS = ("text", "agent", "needle", "copy", "count")
SHARES = {512: (.40, .10, .22, .24, .04), 1 << 30: (.52, .14, .16, .14, .04)}     # of sequences up to a length
ANSWER = {"needle": 8., "copy": 4.}     # weights of these answers' losses, and of no other token's


# --- documents --------------------------------------------------------------------------------------------------------

class _Text(html.parser.HTMLParser):
    """The text of a page, without navigation, scripts and styles."""

    def __init__(self):
        super().__init__()
        self.out, self.skip = [], 0

    def handle_starttag(self, tag, attrs):
        self.skip += tag in ("script", "style", "head", "nav")
        if tag in ("p", "div", "li", "tr", "br", "pre", "h1", "h2", "h3", "h4", "dt", "dd", "table"):
            self.out.append("\n")

    def handle_endtag(self, tag):
        self.skip -= tag in ("script", "style", "head", "nav")

    def handle_data(self, data):
        if self.skip <= 0:
            self.out.append(data)


def plain(path):
    """The text of a file, or None."""
    raw = path.read_bytes()
    if b"\0" in raw:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if path.suffix == ".html":
        parser = _Text()
        parser.feed(text)
        text = re.sub(r"[ \t]+\n", "\n", re.sub(r"\n\s*\n+", "\n\n", "".join(parser.out))).strip() + "\n"
    return text.encode()[:DOC_BYTES]


def package_documents(cache, name, seen):
    """(path, bytes) of a package's documents in an order of their own; lines seen in earlier ones do not count."""
    _, endings, most = PACKAGES[name]
    root = cache / "x" / name
    files = [p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and p.name.endswith(endings)]
    used, out = 0, []
    for p in sorted(files, key=lambda p: hashlib.sha256(str(p.relative_to(root)).encode()).digest()):
        text = plain(p)
        if not text or len(text) < 400 or max(map(len, text.split(b"\n"))) > 2000:
            continue
        lines = [hash_line(l) for l in text.split(b"\n") if len(l) >= 20]
        if sum(l in seen for l in lines) * 2 > len(lines):
            continue
        seen.update(lines)
        out.append((f"{name}/{p.relative_to(root)}", text))
        used += len(text)
        if used >= most * 1_000_000:
            break
    return out


def hash_line(line):
    return hashlib.blake2b(line.strip(), digest_size=8).digest()


def fetch(cache):
    """Downloads and unpacks."""
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=cache, check=True)
    for deb in sorted(cache.glob("*.deb")):
        where = cache / "x" / deb.name.split("_")[0]
        where.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg", "-x", deb, where], check=True)


def build(cache, out):
    """Writes the corpus: xz of one line of JSON (the index) and the documents one after the other. And a manifest."""
    seen, docs, manifest = set(), [], {"packages": [], "held_out_one_of": HELD_OUT}
    for name in PACKAGES:
        found = package_documents(cache, name, seen)
        deb = next(cache.glob(name + "_*.deb"))
        manifest["packages"].append({"package": name, "file": deb.name, "licence": PACKAGES[name][0],
                                     "sha256": hashlib.sha256(deb.read_bytes()).hexdigest(),
                                     "documents": len(found), "bytes": sum(len(t) for _, t in found)})
        docs += found
        print(f"{name}: {len(found)} documents, {sum(len(t) for _, t in found) / 1e6:.1f} MB", flush=True)
    docs.sort(key=lambda d: hashlib.sha256(d[0].encode()).digest())
    index = json.dumps([[name, len(text)] for name, text in docs])
    blob = lzma.compress(index.encode() + b"\n" + b"".join(t for _, t in docs), preset=9)
    out.write_bytes(blob)
    corpus = Corpus(out)
    manifest.update(corpus_sha256=hashlib.sha256(blob).hexdigest(), corpus_bytes=len(blob),
                    train_documents=len(corpus.train), train_bytes=sum(map(len, corpus.train)),
                    held_documents=len(corpus.held), held_bytes=sum(map(len, corpus.held)))
    out.with_suffix(".json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{out}: {len(blob) / 2 ** 20:.1f} MiB; train {manifest['train_bytes'] / 1e6:.1f} MB, "
          f"held out {manifest['held_bytes'] / 1e6:.2f} MB in {len(corpus.held)} documents")


class Corpus:
    """train and held: lists of documents (bytes), split by document; held_names beside them."""

    def __init__(self, path):
        index, _, data = lzma.decompress(pathlib.Path(path).read_bytes()).partition(b"\n")
        self.train, self.held, self.held_names, at = [], [], [], 0
        for name, size in json.loads(index):
            text = data[at:at + size]
            at += size
            if int.from_bytes(hashlib.sha256(b"split " + name.encode()).digest()[:4], "big") % HELD_OUT:
                self.train.append(text)
            else:
                self.held.append(text)
                self.held_names.append(name)


# --- made documents ---------------------------------------------------------------------------------------------------
# Each returns [(token ids as bytes or a special id, weight of its loss)].

def word(rng, parts=2):
    """A made-up word."""
    return "".join(rng.choice(list("bdklmnvz")) + rng.choice(list("aeou")) for _ in range(parts)) \
        + rng.choice(["", "n", "l", "m"])


def name(rng):
    return f"{word(rng)}-{word(rng)}"


def excerpt(rng, docs, size):
    """About `size` bytes of a random document, whole lines."""
    out = b""
    while len(out) < size:
        text = docs[rng.integers(len(docs))]
        a = int(rng.integers(max(1, len(text) - size // 2)))
        a = text.find(b"\n", a) + 1
        out += text[a:a + size - len(out)]
    return out[:out.rfind(b"\n") + 1] or out


def needle(rng, docs, size, count=None, depths=None):
    """Facts hidden in text and asked for at the end. depths: where each fact is planted, as parts of the text."""
    count = count or 1 + int(rng.integers(1 + size // 192))
    facts = [(name(rng), "".join(map(str, rng.integers(0, 10, 6)))) for _ in range(count)]
    text = excerpt(rng, docs, size - 96 * count)
    places = sorted((int(len(text) * (rng.random() if depths is None else depths[k])), k) for k in range(count))
    out, at = [], 0
    for place, k in places:
        place = max(at, text.rfind(b"\n", 0, place) + 1)
        out += [(text[at:place], 1.), (f"The code of {facts[k][0]} is {facts[k][1]}.\n".encode(), .2)]
        at = place
    out.append((text[at:], 1.))
    for k in rng.permutation(count):
        out += [(f"Q: What is the code of {facts[k][0]}? A: ".encode(), .2),
                (facts[k][1].encode() + b"\n", ANSWER["needle"])]
    return out


def copy(rng, docs, size, blocks=None, far=False):
    """Blocks of random letters to repeat after text. far: the text between is as long as it can be."""
    blocks = blocks or 1 + int(rng.integers(1 + size // 384))
    made = [(name(rng), "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz0123456789 "), 40))) for _ in range(blocks)]
    gap = max(64, (size - 160 * blocks) // blocks)
    out = []
    for label, text in made:
        out.append((f"Block {label}: {text}\n".encode(), .2))
        if not far:
            out.append((excerpt(rng, docs, gap), 1.))
    if far:
        out.append((excerpt(rng, docs, gap * blocks), 1.))
    for k in rng.permutation(blocks):
        out += [(f"Repeat block {made[k][0]}: ".encode(), .2), (made[k][1].encode() + b"\n", ANSWER["copy"])]
    return out


def count(rng, docs, size):
    """Lists with a question about how many, and sequences of numbers."""
    out, used = [], 0
    while used < size:
        kinds = [word(rng) for _ in range(3)]
        items = [kinds[k] for k in rng.integers(0, 3, 4 + int(rng.integers(30)))]
        start, step = int(rng.integers(1000)), 1 + int(rng.integers(12))
        part = [(("Items: " + " ".join(items) + "\n").encode(), .3)]
        for k in kinds:
            part += [(f"How many {k}? ".encode(), .3), (f"{items.count(k)}\n".encode(), 3.)]
        part.append((("Count: " + " ".join(str(start + step * i) for i in range(12)) + "\n").encode(), 1.))
        out += part
        used += sum(len(b) for b, _ in part)
    return out


def call(rng, **fields):
    return json.dumps(fields).encode()


def agent(rng, docs, size):
    """A coding agent at work on files: reads, searches, edits, reads again; what it says follows from what it saw."""
    out, used = [], 0

    def say(who, text, weight):
        nonlocal used
        out.extend([(who, .5), (text, weight), (END, .5)])
        used += len(text) + 2

    while used < size:
        path = f"{word(rng)}/{word(rng, 3)}.{rng.choice(['py', 'go', 'txt', 'md'])}"
        room = min(max(300, (size - used) // 2), 300 + int(rng.integers(2400)))
        body = excerpt(rng, docs, room)
        words = sorted(set(re.findall(rb"[A-Za-z_]{5,}", body)))
        old = words[rng.integers(len(words))] if words else b"\n"
        new = name(rng).replace("-", "_").encode()
        lines = body.split(b"\n")
        hits = [b"%d: %s" % (k + 1, l) for k, l in enumerate(lines) if old in l][:8]
        say(USER, b"In %s, rename %s to %s." % (path.encode(), old, new), .5)
        say(ASSISTANT, call(rng, tool="read_file", path=path), 2.)
        say(TOOL, body, 1.)
        if rng.random() < .6:
            say(ASSISTANT, call(rng, tool="search", path=path, word=old.decode()), 2.)
            say(TOOL, b"\n".join(hits), 2.)
        say(ASSISTANT, call(rng, tool="edit", path=path, old=old.decode(), new=new.decode()), 2.)
        say(TOOL, b"%d lines changed" % sum(old in l for l in lines), 1.)
        if rng.random() < .5 and used + room < size:
            say(ASSISTANT, call(rng, tool="read_file", path=path), 2.)
            say(TOOL, body.replace(old, new), 2.)
        say(ASSISTANT, b"Renamed %s to %s in %s." % (old, new, path.encode()), 2.)
    return out


MADE = {"agent": agent, "needle": needle, "copy": copy, "count": count}


def tokens(parts):
    """Pieces of a made document -> int32 ids, float32 weights; begins with BEGIN."""
    ids, weights = [np.array([BEGIN], np.int32)], [np.array([0], np.float32)]
    for piece, weight in parts:
        special = isinstance(piece, int)
        t = np.array([piece], np.int32) if special else np.frombuffer(piece, np.uint8).astype(np.int32) + BYTE
        ids.append(t)
        weights.append(np.full(len(t), weight, np.float32))
    return np.concatenate(ids), np.concatenate(weights)


def text_parts(rng, docs, size):
    """Documents one after the other, the first from somewhere inside."""
    out, used = [], 0
    while used < size:
        text = docs[rng.integers(len(docs))]
        if not out and len(text) > size:
            text = text[int(rng.integers(len(text) - size // 2)):]
        out += [(text, 1.), (END, 1.)]
        used += len(text) + 1
    return out


def row(docs, seed, step, k, length):
    """Sequence k of a step: ids and weights, length + 1 each."""
    rng = np.random.default_rng([seed, step, k])
    kind = KINDS[rng.choice(len(KINDS), p=next(p for most, p in SHARES.items() if length <= most))]
    made = text_parts(rng, docs, length) if kind == "text" else MADE[kind](rng, docs, length)
    ids, weights = tokens(made)
    if len(ids) <= length:
        more, w = tokens(text_parts(rng, docs, length - len(ids) + 1))
        ids, weights = np.concatenate([ids, more]), np.concatenate([weights, w])
    return ids[:length + 1], weights[:length + 1]


def batch(docs, seed, step, rows, length):
    """ids and weights, [rows, length + 1] each."""
    made = [row(docs, seed, step, k, length) for k in range(rows)]
    return np.stack([m[0] for m in made]), np.stack([m[1] for m in made])


def token_map():
    """Raw -> compressed ids of Engram: capitals count as small letters. int32 [VOCAB]."""
    ids, out = {}, []
    for t in range(VOCAB):
        key = t + 32 if ord("A") + BYTE <= t <= ord("Z") + BYTE else t
        out.append(ids.setdefault(key, len(ids)))
    return np.array(out, np.int32)


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("what", choices=("fetch", "build", "show"))
    a.add_argument("paths", nargs="+")
    a = a.parse_args()
    if a.what == "fetch":
        fetch(pathlib.Path(a.paths[0]))
    elif a.what == "build":
        build(pathlib.Path(a.paths[0]), pathlib.Path(a.paths[1]))
    else:
        made = MADE[a.paths[1]](np.random.default_rng(1), Corpus(a.paths[0]).train, 3000)
        sys.stdout.buffer.write(b"".join(p if isinstance(p, bytes) else SPECIALS[p].encode() for p, _ in made) + b"\n")


if __name__ == "__main__":
    main()
