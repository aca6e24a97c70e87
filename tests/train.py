#!/usr/bin/python3
"""tools/train against the independent oracle, the golden vectors and the engine (needs PyTorch; under a minute).

    tests/train.py [--cedar ./cedar]

One line per check. Exit code 0: all hold; 1: some do not.
"""
import argparse
import importlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(ROOT, "tests", "golden")
sys.dont_write_bytecode = True
os.environ["TRITON_INTERPRET"] = "1"        # the fused kernel runs on the CPU

import numpy as np
import torch

torch.set_num_threads(1)


def from_folder(folder, *names):
    """Modules of a folder; another folder may have modules of the same names."""
    sys.path.insert(0, os.path.join(ROOT, folder))
    modules = [importlib.import_module(n) for n in names]
    sys.path.pop(0)
    for n in ("quant", *names):
        sys.modules.pop(n, None)
    return modules


checkpoint, v41, oracle_quant = from_folder("tests/oracle", "checkpoint", "v41", "quant")
attention, card, compare, data, export, check, evaluate, model, quant, sinkhorn, train = from_folder(
    "tools/train", "attention", "card", "compare", "data", "export", "check", "evaluate", "model", "quant", "sinkhorn",
    "train")
failed = 0


def holds(what, good, note=""):
    """Counts and prints one check."""
    global failed
    failed += not good
    print(f"{'ok  ' if good else 'FAIL'} {what}{'  ' + note if note else ''}", flush=True)


def within(what, error, limit):
    holds(what, error <= limit, f"{error:.1e} of {limit:.0e}")


# --- formats ----------------------------------------------------------------------------------------------------------

def formats():
    """Every quantiser and code, on values with ties, zeros and all magnitudes, in both float types."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((384, 96)) * 2.0 ** rng.integers(-20, 12, (384, 1))
    x[:64] = np.round(x[:64] * 16) / 16
    x[0] = 0
    for kind in (np.float64, np.float32):
        a, t = x.astype(kind), torch.from_numpy(x.astype(kind))
        for name in ("fp8q32", "fp4q32", "fp4q16"):
            want = getattr(oracle_quant, name)(a)[2]
            holds(f"{name} of {kind.__name__}", np.array_equal(getattr(quant, name)(t)[0].double().numpy(), want))
        codes, scales = oracle_quant.quant_tiles(a)
        values, s = quant.tiles(t)
        holds(f"tiles of {kind.__name__}: codes and scales",
              np.array_equal(quant.codes_fp8(values, s, (32, 32)).numpy(), codes)
              and np.array_equal(quant.scale_bytes(s).numpy(), scales))
        codes, scales, _ = oracle_quant.fp4q32(a)
        values, s = quant.fp4q32(t)
        holds(f"packed FP4 of {kind.__name__}: codes and scales",
              np.array_equal(quant.codes_fp4(values, s).numpy(), codes)
              and np.array_equal(quant.scale_bytes(s).numpy(), scales))
    every = torch.arange(256, dtype=torch.uint8)
    every = every[(every & 127) != 127]
    values = torch.from_numpy(oracle_quant.e4m3_decode(every.numpy()))
    near = torch.cat((values, values * 1.001, values * .999, (values[1:] + values[:-1]) / 2))
    want = oracle_quant.e4m3_decode(oracle_quant.e4m3_encode(near.numpy()))
    holds("E4M3 of all codes, their neighbours and midpoints", np.array_equal(quant.e4m3(near).numpy(), want)
          and np.array_equal(quant.e4m3(near.float()).double().numpy(),
                             oracle_quant.e4m3_decode(oracle_quant.e4m3_encode(near.float().numpy()))))


# --- the model --------------------------------------------------------------------------------------------------------

def farthest(got, want):
    """Largest difference relative to the largest element of `want`."""
    return float(np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max())


def golden(name):
    """Exact logits of all tokens, as the oracle stored them."""
    stored = export.read_safetensors(os.path.join(GOLDEN, name, "golden.safetensors"))
    tokens, want = stored["tokens"][1], stored["exact.logits"][1]
    got = check.training_logits(os.path.join(GOLDEN, name), tokens, "wide")
    within(f"{name}: golden logits of {len(tokens)} tokens", farthest(got, want), 1e-6)


@torch.no_grad()
def oracle(name):
    """Decoder replay and drafts, which the golden vectors do not have at every position."""
    directory = os.path.join(GOLDEN, name)
    c, weights = checkpoint.load(directory)
    o, m, w = v41.Model(c, weights), check.load(directory, "wide"), c.sliding_window
    tok = np.random.default_rng(5).integers(0, c.vocab_size, 6 * w)
    ids, first = torch.from_numpy(tok)[None], 5 * w
    lo = torch.where(torch.arange(6 * w) >= first, first, 0)[None]
    want = o.forward(tok, v41.Sequence(c), w)[0]
    within(f"{name}: decoder replay", farthest(m.forward(ids, (None, lo))[0][0, first:].numpy(), want), 1e-9)
    state, early = v41.Sequence(c), torch.where(torch.arange(6 * w) >= 3 * w, 3 * w, 0)[None]
    o.forward(tok[:3 * w], state)
    state.lo = [3 * w] * c.num_hidden_layers
    want = o.forward(tok[3 * w:], state)[0]
    got = m.forward(ids, (early, early))[0][0, 3 * w:].numpy()
    within(f"{name}: windows clipped in all layers", farthest(got, want), 1e-9)
    state = v41.Sequence(c)
    o.forward(tok, state)
    _, more = m.forward(ids)
    size = c.dspark_block_size
    at = torch.tensor([0, 5, w + 3, 6 * w - size - 2])
    logits, confidence, _ = m.draft(more["features"], ids, at)
    worst = 0.
    for k, p in enumerate(at.tolist()):
        s = state.copy()
        s.truncate(p + 1)
        _, x, sure = o.draft(s, int(tok[p + 1]), forced=tok[p + 2:p + 2 + size].tolist())
        worst = max(worst, farthest(logits[0, k].numpy(), x), farthest(confidence[0, k].numpy(), sure))
    within(f"{name}: drafts", worst, 1e-9)


def kernels():
    """The Triton kernels, forward and backward, in Triton's interpreter."""
    if sinkhorn.triton is None:
        print("SKIP fused Sinkhorn rounds and attention: Triton is not installed")
        return
    holds("fused Sinkhorn rounds, forward and backward", sinkhorn.agrees("cpu"))
    holds("fused attention, forward and backward, and index scores", attention.agrees("cpu", torch.float32, 1e-5))


def each_expert(x, ids, share, up, down, limit):
    """What `routed` should give, row by row and pick by pick."""
    y = 0
    for k in range(ids.shape[1]):
        ab = torch.einsum("noi,ni->no", up[ids[:, k]], x)
        h = model.swiglu(ab, share[:, k, None], limit, torch.float32)
        y = y + torch.einsum("noi,ni->no", down[ids[:, k]], h)
    return y


def experts():
    """Experts as one product over sorted rows, in bf16 (by the function that GPUs use) and in float32; one has none."""
    holds("one product of all experts", model.grouped_agrees("cpu", torch.bfloat16, 1e-2))
    g = torch.Generator().manual_seed(2)
    m = model.Model(model.Shape(os.path.join(ROOT, "scenarios", "models", "small.json")), data.token_map())
    m.quantise = lambda x: x.to(m.mm)
    ids = torch.rand(50, 6, generator=g).argsort(1)[:, :3]
    values = [torch.randn(s, generator=g) for s in ((50, 64), (50, 3), (7, 64, 64), (7, 64, 32))]
    grad = torch.randn(50, 64, generator=g)
    for kind, limit in ((torch.bfloat16, 3e-2), (torch.float32, 1e-5)):
        a = [t.to(torch.float32 if t is values[1] else kind, copy=True).requires_grad_() for t in values]
        x, share, up, down = a
        m.mm, m.ready = kind, {"e.w13": up, "e.w2": down}
        got = m.routed("e", x, ids, share)[0]
        (got * grad).sum().backward()
        b = [t.detach().float().requires_grad_() for t in a]
        want = each_expert(b[0], ids, *b[1:], m.c.swiglu_limit)
        (want * grad).sum().backward()
        pairs = [(got.detach(), want.detach())] + [(p.grad, q.grad) for p, q in zip(a, b)]
        holds(f"experts over sorted rows in {str(kind)[6:]}", all(attention.close(p, q, limit) for p, q in pairs))


# --- data, training, export -------------------------------------------------------------------------------------------

def toy(directory):
    """A small shape of the same structure as `small`; the path of its config.json."""
    with open(os.path.join(ROOT, "scenarios", "models", "small.json")) as f:
        js = json.load(f)
    js["text_config"].update(
        hidden_size=64, head_dim=32, num_attention_heads=2, qk_rope_head_dim=16, q_lora_rank=32, o_lora_rank=32,
        sliding_window=32, index_n_heads=2, index_head_dim=32, index_topk=16, candidate_topk_blocks=4,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, dspark_n_routed_experts=2,
        engram_vocab_size=509)
    primes = [x for x in range(509, 700) if all(x % q for q in range(2, math.isqrt(x) + 1))]
    js["text_config"]["engram_num_embeddings"] = [sum(primes[:8]), sum(primes[8:16])]
    path = os.path.join(directory, "config.json")
    with open(path, "w") as f:
        json.dump(js, f)
    return path


DOCUMENTS = [b"".join(b"line %d of text number %d, with some words\n" % (i * k % 97, k) for i in range(60))
             for k in range(20)]


def made():
    """Tasks hold what they ask for, and batches repeat."""
    holds("a batch repeats", all(np.array_equal(*p) for p in zip(data.batch(DOCUMENTS, 1, 5, 3, 400),
                                                                  data.batch(DOCUMENTS, 1, 5, 3, 400))))
    holds("another step is another batch",
          not np.array_equal(data.batch(DOCUMENTS, 1, 5, 3, 400)[0], data.batch(DOCUMENTS, 1, 6, 3, 400)[0]))
    for kind in ("needle", "copy"):
        good = True
        for k in range(20):
            ids, weights = data.tokens(data.MADE[kind](np.random.default_rng(k), DOCUMENTS, 1500))
            text = bytes((ids - data.BYTE).clip(0).astype(np.uint8))
            ends = np.flatnonzero(np.diff((weights >= 4).astype(int), append=0) < 0) + 1
            starts = np.flatnonzero(np.diff((weights >= 4).astype(int), prepend=0) > 0)
            good &= len(starts) > 0 and all(text[a:b - 1] in text[:a] for a, b in zip(starts, ends))
        holds(f"{kind}: every answer stands in the text before", good)
    compressed = json.load(open(os.path.join(ROOT, "scenarios", "models", "small.json")))["text_config"]
    holds("token map: size of the shape, capitals as small letters",
          data.token_map().max() + 1 == compressed["engram_compressed_vocab_size"]
          and len(data.token_map()) == data.VOCAB
          and data.token_map()[data.BYTE + ord("Q")] == data.token_map()[data.BYTE + ord("q")])
    early, late = train.window_bounds(np.random.default_rng(3), 8, 2000, .8)
    at = torch.arange(2000)
    holds("window bounds grow, begin at a row of their own, and are late where early",
          bool((late.diff(dim=1) >= 0).all() and (late <= at).all() and late.any()
               and (late.gather(1, late) == late).all() and (early <= late).all()
               and ((early == late) | (early == 0)).all()))


def evaluated():
    """Figures of evaluate.py and their intervals, by hand; Wilson's are those that Newcombe (1998) prints."""
    for right, of, *want in ((81, 263, .2553, .3662), (15, 148, .0624, .1605), (0, 20, 0, .1611),
                             (1, 29, .0061, .1718)):
        got = evaluate.share(right, of)
        within(f"evaluate: Wilson interval of {right} of {of}", farthest([got["low"], got["high"]], want), 5e-4)
    # Documents of 100 and 300 bytes, 10 and 60 nats: together .175 nats a byte; a quarter of the resamples has the
    # first alone, a quarter the second. The two pieces of the first stay together.
    text = evaluate.Text([b"x" * 100, b"y" * 300], 400, 51)
    holds("evaluate: documents in pieces", text.sizes == [50] * 8 and text.document == [0] * 2 + [1] * 6
          and [text.pieces_of(n) for n in (1, 50, 51, 400, 999)] == [1, 1, 2, 8, 8])
    nats = [10., 0.] + [10.] * 6
    made = {"needle": [(None, np.array([False, True])), (None, np.array([True, False]))]}
    scored = [(np.ones(2), np.array([False, True]))] * 2 + [(np.array([n]), None) for n in nats]
    got = evaluate.summary(scored, made, text, whole=np.array(nats) - 2.)       # 2 nats of 50 bytes more, everywhere
    figures = lambda of, *keys: np.array([of[k] for k in keys])
    within("evaluate: bits a byte and their interval", farthest(
        figures(got["bits_per_byte"], "value", "low", "high") * math.log(2), [.175, .1, .2]), 1e-12)
    within("evaluate: a loss is paired",
           farthest(figures(got["loss"], "value", "low", "high") * math.log(2), [.04] * 3), 1e-12)
    holds("evaluate: what a figure is of", all(figures(got["loss"], "documents", "bytes") == (2, 400)))
    holds("evaluate: a task is solved by its answer alone", all(figures(got["needle"], "right", "of") == (1, 2)))


def refused(what):
    """The sentence with which a tool ends; "" when it does not."""
    try:
        what()
    except SystemExit as e:
        return str(e)
    return ""


def cards(directory):
    """Results that the card takes, and those that it refuses by name."""
    path, parts = os.path.join(directory, "results.json"), ["whole", "without window"]
    for text, want in (('{"whole": 1, "without window": 2}', ""), ('{"whole": 1}', '"without window" is missing'),
                       ('{"unfinished": true}', "unfinished"), ('{"whole": 1, "wi', "Unterminated"), ("", "Expecting")):
        with open(path, "w") as f:
            f.write(text)
        said = refused(lambda: card.read_results(path, parts))
        named = said.startswith(f"card.py: {path}: ") and want in said
        holds(f"card: results {text!r}", named if want else not said, said)


def compared(directory, cedar):
    """compare.py on documents by hand, and its figures of an audit against those that cedar itself computes."""
    one = {"encoder": {(0, "a.py"): (100, 10.), (1, "transcript-0"): (300, 60.)}}
    other = {"encoder": {(0, "a.py"): (100, 14.), (1, "transcript-0"): (300, 72.)}}     # .04 more, everywhere
    holds("compare: two models", list(compare.compare(one, other)) == [
        "encoder, all: 2 documents, 400 positions, mean KL 0.175 (0.1 to 0.2); other 0.215 (0.14 to 0.24); other less "
        "first 0.04 (0.04 to 0.04)",
        "encoder, texts: 1 documents, 100 positions, mean KL 0.1 (no interval); other 0.14 (no interval); other less "
        "first 0.04 (no interval)",
        "encoder, transcripts: 1 documents, 300 positions, mean KL 0.2 (no interval); other 0.24 (no interval); other "
        "less first 0.04 (no interval)"])
    more = {"encoder": other["encoder"] | {(2, "b.py"): (100, 1.)}}
    holds("compare: another document is refused", "same documents" in refused(lambda: list(compare.compare(one, more))))
    holds("compare: another arm is refused",
          "arm both" in refused(lambda: list(compare.compare(one, one | {"both": other["encoder"]}))))
    if cedar is None:
        print("SKIP compare.py on an audit: there is no ./cedar")
        return
    lua, db = os.path.join(directory, "audit.lua"), os.path.join(directory, "audit.db")
    with open(lua, "w") as f:
        f.write('audit { docs = 8, turns = 2, arms = { "exact", "encoder" } }\naudit { arms = { "encoder" } }\n')
    subprocess.run([cedar, "run", lua, "-q", "-o", db, "backend=cpu"], check=True)
    with sqlite3.connect(db) as of:
        positions, *want = of.execute("""SELECT positions, value, lo, hi FROM audit_stats
            WHERE (audit_id, arm_id, metric, bin) = (1, 2, 'kl', -1)""").fetchone()
    documents = compare.read(db)
    for status in ("interrupted", None):
        cut = os.path.join(directory, "cut.db")
        shutil.copy(db, cut)
        with sqlite3.connect(cut) as of:
            of.execute("UPDATE audits SET status = ?" if status else "DELETE FROM audits WHERE ? IS NULL", (status,))
        of.close()
        holds(f"compare: an audit that is {status or 'not there'} is refused",
              (status or "no audit") in refused(lambda: compare.read(cut)))
    holds("compare: a file that is not there is named", "none.db: " in refused(lambda: compare.read("none.db")))
    n, kl = np.array(list(documents["encoder"].values())).T
    got = evaluate.ratio(kl, n, range(len(n)))
    holds("compare: the arm under test alone", list(documents) == ["encoder"] and len(n) == 8 and n.sum() == positions)
    within("compare: mean KL is cedar's", farthest([got["value"]], want[:1]), 1e-12)
    within("compare: the interval is cedar's, but for its other resamples",
           farthest([got["low"], got["high"]], want[1:]), .02)


def trained(directory, cedar):
    """A few steps of training: losses fall, all weights get gradients, and the engine computes the same logits."""
    m = model.Model(model.Shape(toy(directory)), data.token_map(), mode="f32")
    m.initialise(1)
    optimiser, plain = train.Optimiser(m), []
    batch = train.Batches(DOCUMENTS, 1, 1024, m.c.dspark_block_size, .5)[0, 256][1]
    before = {n: w.detach().clone() for n, w in m.w.items()}
    for step in range(9):                                       # the first without effect, as when a step is rehearsed
        total, note, counts = train.losses(m, batch)
        grads = torch.autograd.grad(total, optimiser.weights, allow_unused=True)
        dial = optimiser.dial(.2, live=step > 0)
        train.balance(m, counts, dial[4] * optimiser.step(grads, dial)[1])
        if step == 0:       # of zero momenta; below come others
            still = [n for n, w in m.w.items() for k, other in enumerate(optimiser.weights)
                     if w is other and (grads[k] is None or not grads[k].any())]
            holds("training: a rehearsed step changes nothing", all(torch.equal(w, before[n]) for n, w in m.w.items())
                  and not any(t.any() for b in optimiser.banks for t in b.state))
        plain.append(float(note["loss"]))
    poisoned = [g.clone() for g in grads]
    poisoned[0].fill_(math.inf)
    all_of = lambda: [*m.w.values(), *(t for b in optimiser.banks for t in b.state)]
    before = [t.detach().clone() for t in all_of()]
    optimiser.step(poisoned, dial)
    optimiser.step(grads, optimiser.dial(.2, live=False))
    holds("training: steps without finite gradients, and rehearsed ones, change nothing",
          all(torch.equal(*p) for p in zip(all_of(), before)))
    holds("training: every weight has a gradient", not still, ", ".join(still[:5]))
    holds("training: the loss falls", plain[-1] < plain[0] - .3, f"{plain[0]:.2f} to {plain[-1]:.2f}")
    out = os.path.join(directory, "model")
    export.export(m, out)
    back = check.load(out, "f32")
    holds("export: what is read back is what the passes used", all(
        torch.equal(back.w[n].float(), (w if m.kind[n] == "f32" else model.QUANTISER[m.kind[n]](w)[0]).detach())
        for n, w in m.w.items()))
    if cedar is None:
        print("SKIP the engine's logits of an exported model: there is no ./cedar")
        return
    tokens = batch["ids"][0, :200].numpy().astype(np.int32)
    want = check.engine_logits(cedar, out, tokens, "wide", data.VOCAB)
    got = check.training_logits(out, tokens, "wide")
    within("export: the engine's logits are the training code's", farthest(got, want), 1e-6)
    scored = list(evaluate.Engine(cedar, "cpu", "wide").score(out, [tokens[:50], tokens]))
    nats = np.log(np.exp(want[:-1].astype(float)).sum(1)) - want[np.arange(199), tokens[1:]]
    within("evaluate: nats from cedar score", farthest(scored[1][0], nats), 1e-6)
    holds("evaluate: each sequence has its own, and what was likeliest", np.array_equal(scored[0][0], scored[1][0][:49])
          and np.array_equal(scored[1][1], want[:-1].argmax(1) == tokens[1:]))


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--cedar", default=os.path.join(ROOT, "cedar"))
    a = a.parse_args()
    formats()
    for name in ("tiny-s1", "tiny2-s1"):
        golden(name)
        oracle(name)
    kernels()
    experts()
    made()
    evaluated()
    with tempfile.TemporaryDirectory() as directory:
        cards(directory)
        compared(directory, a.cedar if os.path.exists(a.cedar) else None)
        trained(directory, a.cedar if os.path.exists(a.cedar) else None)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
