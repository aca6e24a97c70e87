"""Trains a shape on a corpus for a given time and exports the model as it goes.

    train.py --corpus CORPUS.xz --out DIR [--shape scenarios/models/small.json] [--minutes 20] [--clip 0.5]

DIR gets log.jsonl (one line of numbers every so often), state.pt (all of training, for --resume) and model/ (a
checkpoint that cedar reads, written anew at each export). Batches and first weights follow from --seed; how far the
training comes within its time does not, and sums on a GPU are not ordered, so two runs differ in the last digits.
"""
import argparse
import contextlib
import json
import math
import os
import shutil
import time

import torch
import torch._dynamo
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import attention
import data
import export
import model as architecture
import quant
import sinkhorn

# (part of the time, length of the sequences from there on): first ones so short that most entries are picked
LENGTHS = ((0, 256), (.1, 512), (.22, 1024), (.36, 2048), (.55, 4096), (.82, 8192))
WARM, DECAY = .01, .45              # parts of the time: learning rates rise, and fall to 0
RATES = {"muon": 3e-3, "adam": 2e-3, "table": 3e-3, "embed": 1e-2, "mix": 3e-4}
KL_ROWS, ANCHORS = 64, 1024         # rows of a sequence for the indexer's loss; draft blocks of a step
BALANCE = 1e-2, 1e-4                # step of the routers' biases, at the start and at the end
ENDING = 10                         # seconds kept for the last export
AHEAD = 2                           # steps given to the GPU before the first of them has ended


# --- optimisers -------------------------------------------------------------------------------------------------------

@torch.no_grad()
def orthogonal(g, steps=5):
    """Nearest orthogonal matrices of [..., M, N], by Newton and Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return (x.mT if tall else x).to(g.dtype)


class Bank:
    """Weights that are stepped together, as views of one tensor, and their momenta."""

    def __init__(self, kind, weights):
        self.kind, self.weights, self.muon = kind, weights, kind == "muon"
        shape = weights[0].shape[-2:] if self.muon else ()
        self.all = torch.cat([w.detach().reshape(-1, *shape) for w in weights])
        for w, part in zip(weights, self.all.split([w.numel() // math.prod(shape) for w in weights])):
            w.data = part.view(w.shape)
        self.state = [torch.zeros_like(self.all) for _ in range(1 if self.muon else 2)]

    def join(self, grads):
        """Gradients of the weights as one tensor; a weight without one gets zeros."""
        return torch.cat([(torch.zeros_like(w) if g is None else g).reshape(-1, *self.all.shape[1:])
                          for w, g in zip(self.weights, grads)])

    def step(self, grad, rate, live, correct, betas=(.9, .95), momentum=.95, decay=.1):
        """rate and correct: tensors. live: a step is taken; else nothing changes, and `grad` is zero."""
        keep = lambda beta: torch.where(live, beta, 1.)
        if self.muon:
            self.state[0].mul_(keep(momentum)).add_(grad)
            update = orthogonal(grad + momentum * self.state[0]) * (.2 * math.sqrt(max(self.all.shape[-2:])))
            self.all.mul_(1 - rate * decay).sub_(update * rate)
            return
        first, second = self.state
        first.mul_(keep(betas[0])).add_(grad, alpha=1 - betas[0])
        second.mul_(keep(betas[1])).addcmul_(grad, grad, value=1 - betas[1])
        self.all.sub_(first / ((second / correct[1]).sqrt() + 1e-10) * (rate / correct[0]))


def family(name, kind):
    """Which of RATES a weight is trained with."""
    if kind in ("fp8", "fp4"):
        return "muon"
    if kind == "rows":
        return "table"
    if name == "embed" or name.endswith("markov_head.embed"):
        return "embed"
    return "mix" if name.endswith("_fn") else "adam"


class Optimiser:
    """Muon for what is stored as FP8 or FP4 matrices, Adam for the rest. Router biases are set by balance alone.

    Rates and counters come as numbers on the device (`dial`), so that a step can be recorded and replayed.
    """
    DIAL = ("live", "rate", "correct1", "correct2", "balance")

    def __init__(self, m):
        groups = {}
        for n, w in m.w.items():
            if w.requires_grad and not n.endswith("gate.bias"):
                kind = family(n, m.kind[n])
                groups.setdefault((kind, tuple(w.shape[-2:]) if kind == "muon" else ()), []).append(w)
        self.banks = [Bank(kind, weights) for (kind, _), weights in groups.items()]
        self.weights = [w for b in self.banks for w in b.weights]
        self.taken = 0

    def dial(self, part, live=True):
        """Numbers of the next step; part: of the time gone."""
        self.taken += live
        steps = max(1, self.taken)
        return torch.tensor([live, min(1, part / WARM + .01, (1 - part) / DECAY + .01), 1 - .9 ** steps,
                             1 - .95 ** steps, BALANCE[0] * (1 - part) + BALANCE[1]])

    @torch.no_grad()
    def step(self, grads, dial):
        """Gradients, clipped to norm 1, into the weights -> their norm, and whether the step was taken."""
        grads, joined = iter(grads), []
        for b in self.banks:
            joined.append(b.join([next(grads) for _ in b.weights]))
        norm = torch.stack([g.norm() for g in joined]).norm()
        live = norm.isfinite() & (dial[0] > 0)
        for b, g in zip(self.banks, joined):
            g.mul_(live / norm.clamp(min=1)).nan_to_num_(0, 0, 0)
            b.step(g, torch.where(live, RATES[b.kind] * dial[1], 0.), live, dial[2:4])
        return norm, live

    def state(self):
        return {"taken": self.taken, "momenta": [b.state for b in self.banks]}

    def load(self, state):
        self.taken = state["taken"]
        for b, momenta in zip(self.banks, state["momenta"]):
            for mine, kept in zip(b.state, momenta):
                mine.copy_(kept)


@torch.no_grad()
def balance(m, counts, rate):
    """Moves the routers' biases towards even loads; rate: a tensor."""
    for p, n in counts.items():
        n = n.to(m.real)
        m.w[f"{p}.ffn.gate.bias"].add_(torch.sign(n.mean() - n) * rate)


# --- losses -----------------------------------------------------------------------------------------------------------

def window_bounds(rng, rows, length, share):
    """First window position of every row, for layers up to the last KV source and for those behind it.

    What bounded replay leaves: a part `share` of the sequences is cut at random places. From a cut on, rows do not read
    window keys before it: behind the last KV source alone (decoder replay), or in all layers (encoder replay too).
    """
    early, late = torch.zeros(rows, length, dtype=torch.long), torch.zeros(rows, length, dtype=torch.long)
    for k in range(rows):
        if rng.random() >= share:
            continue
        cuts = torch.from_numpy(rng.integers(0, length, max(1, length // 768))).sort().values
        start = torch.zeros(length, dtype=torch.long).index_put((cuts,), cuts).cummax(0).values
        late[k] = start
        if rng.random() < .5:
            early[k] = start
    return early, late


def follow(students, teachers):
    """The indexers' loss, KL of index scores to attention: the sum to descend, and each indexer's part."""
    total, parts = 0., []
    for student, teacher in zip(students, teachers):
        mass = teacher.sum(-1, keepdim=True)
        t = teacher / mass.clamp(min=1e-9)
        logp = student.log_softmax(-1)
        kl = torch.where(t > 0, t * (t.clamp(min=1e-20).log() - logp), 0.).sum(-1)
        good = (mass[..., 0] > 1e-6) & kl.isfinite()
        parts.append(torch.where(good, kl, 0.).sum() / good.sum().clamp(min=1))
        total = total + parts[-1]
    return total, torch.stack(parts).detach() if parts else None


def draft_loss(m, more, ids, logits, at):
    """The drafter's losses: next tokens of draft blocks, and whether the model itself would have chosen the same."""
    drafted, confidence, counts = m.draft(more["features"], ids, at)
    want = at[:, None] + 2 + torch.arange(m.c.dspark_block_size, device=ids.device)
    text = F.cross_entropy(drafted.flatten(0, 2).float(), ids[:, want].flatten())
    chosen = logits.detach()[:, want - 1].argmax(-1)
    right = (drafted.detach().argmax(-1) == chosen).float()
    return text + F.binary_cross_entropy_with_logits(confidence.float(), right), right.mean(), counts


def losses(m, batch):
    """All losses of a batch (see `Batches`) -> the sum to descend, numbers to log, tokens per expert."""
    x, y, w = batch["ids"][:, :-1], batch["ids"][:, 1:], batch["weights"][:, 1:]
    lo = (batch["early"], batch["late"]) if "early" in batch else None
    logits, more = m.forward(x, lo, batch["rows"])
    each = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), reduction="none").view(y.shape)
    main = (each * w).sum() / w.sum()
    index, parts = follow(more["students"], more["teachers"])
    draft, right, counts = draft_loss(m, more, x, logits, batch["at"]) if m.c.num_nextn_predict_layers \
        else (0., None, {})
    more["counts"].update(counts)
    mean = lambda chosen: (each.detach() * chosen).sum() / chosen.sum()        # not a number when there are none
    note = {"loss": main.detach(), "plain": mean(w == 1), "index": parts.mean(), "draft_right": right,
            **{kind: mean(w == weight) for kind, weight in data.ANSWER.items()}}
    return main + index + .3 * draft, note, more["counts"]


@torch.no_grad()
def held_out(m, documents, length, tokens):
    """Bits per byte of about `tokens` of held-out text, sequences of `length`. Nothing is compiled for it."""
    total, rows, fused, m.f = 0., max(1, tokens // 8 // length), m.f, m.plain
    batches = max(1, tokens // (rows * length))
    for k in range(batches):
        made = [data.tokens(data.text_parts(data.np.random.default_rng([7, k, r]), documents, length))[0][:length + 1]
                for r in range(rows)]
        ids = torch.from_numpy(data.np.stack(made)).long().to(m.device)
        logits = m.forward(ids[:, :-1])[0]
        total += float(F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()))
    m.f = fused
    return total / batches / math.log(2)


# --- the run ----------------------------------------------------------------------------------------------------------

class Batches(Dataset):
    """Batches by (step, length): dicts of tensors, a pure function of the key.

    ids and weights [rows, length + 1]; rows [R]: for the indexer's loss; at [A]: where draft blocks begin; early, late
    [rows, length]: `window_bounds`, with `clip`.
    """

    def __init__(self, documents, seed, tokens, block, clip):
        self.documents, self.seed, self.tokens, self.block, self.clip = documents, seed, tokens, block, clip

    def __getitem__(self, key):
        step, length = key
        rows = max(1, self.tokens // length)
        ids, weights = data.batch(self.documents, self.seed, step, rows, length)
        rng = data.np.random.default_rng([self.seed, step, 1 << 20])
        out = {"ids": torch.from_numpy(ids).long(), "weights": torch.from_numpy(weights),
               "rows": torch.from_numpy(data.np.sort(rng.permutation(length)[:KL_ROWS])),
               "at": torch.from_numpy(rng.integers(0, length - self.block - 2, max(1, ANCHORS // rows)))}
        if self.clip:
            out["early"], out["late"] = window_bounds(rng, rows, length, self.clip)
        return length, out


class Step:
    """A whole step of one length, recorded as a CUDA graph once it has run, or run anew each time."""

    def __init__(self, run, batch):
        self.run, self.m = run, run.m
        self.batch = {k: v.to(run.a.device) for k, v in batch.items()}
        self.dial = run.optimiser.dial(0, live=False).to(run.a.device)
        self.graph = self.result = None

    def whole(self):
        """Losses, gradients, and the step -> numbers to log, whether it was taken."""
        total, note, counts = losses(self.m, self.batch)
        grads = torch.autograd.grad(total, self.run.optimiser.weights, allow_unused=True)
        norm, live = self.run.optimiser.step(grads, self.dial)
        balance(self.m, counts, self.dial[4] * live)
        load = torch.stack([n.max() / n.float().mean() for n in counts.values()]).max()
        return {**note, "norm": norm, "busiest": load}, live

    def rehearse(self, record, pool):
        """Runs without changing anything; then records, when it shall. -> milliseconds of a further run."""
        side = torch.cuda.Stream() if record else None
        if record:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side) if record else contextlib.nullcontext():
            self.result = self.whole()
        if record:
            torch.cuda.synchronize()
            self.result, graph = None, torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self.result = self.whole()
            self.graph = graph
            self.run_once()
        if not math.isfinite(self.loss()):
            raise RuntimeError("a rehearsed step gave no finite loss")
        begun = time.monotonic()
        self.run_once()
        self.loss()
        return 1000 * (time.monotonic() - begun)

    def loss(self):
        """Of the last run, for whose end it waits."""
        return float(self.result[0]["loss"])

    def run_once(self):
        """With what stands in `batch` and `dial`."""
        if self.graph:
            self.graph.replay()
        else:
            self.result = self.whole()

    def take(self, batch, dial):
        """One step with a batch -> what `whole` gives, in tensors that the next step may overwrite."""
        cuda = self.run.a.device == "cuda"
        for name, value in [*batch.items(), ("", dial)]:
            (self.batch[name] if name else self.dial).copy_(value.pin_memory() if cuda else value, non_blocking=cuda)
        self.run_once()
        return self.result


class Run:
    """One training run."""

    def __init__(self, a):
        self.a, self.start = a, time.monotonic()
        self.corpus = data.Corpus(a.corpus)
        self.m = architecture.Model(architecture.Shape(a.shape), data.token_map(), a.device, a.mode)
        self.m.initialise(a.seed)
        self.optimiser, self.step, self.before, self.begun = Optimiser(self.m), 0, 0., None
        self.lengths = [(p, min(l, a.longest)) for p, l in LENGTHS]
        self.batches = Batches(self.corpus.train, a.seed, a.tokens, self.m.c.dspark_block_size, a.clip)
        self.steps, self.uses, self.pool = {}, [], None
        os.makedirs(a.out, exist_ok=True)
        if a.resume:
            self.resume()
        self.log = open(os.path.join(a.out, "log.jsonl"), "a")

    def spent(self):
        return self.before + time.monotonic() - self.start

    def part(self):
        """Part of the budget that is spent: of the steps, or of the time since the first step."""
        if self.a.steps:
            return min(1., self.step / self.a.steps)
        begun = self.spent() if self.begun is None else self.begun
        return min(1., (self.spent() - begun) / max(1., 60 * self.a.minutes - ENDING - begun))

    def length(self):
        return [l for p, l in self.lengths if p <= self.part()][-1]

    def write(self, **numbers):
        known = {k: v for k, v in numbers.items() if not isinstance(v, float) or math.isfinite(v)}
        line = json.dumps({"step": self.step, "seconds": round(self.spent(), 1)} | known)
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def resume(self):
        s = torch.load(os.path.join(self.a.out, "state.pt"), map_location=self.a.device, weights_only=True)
        with torch.no_grad():
            for name, w in s["weights"].items():
                self.m.w[name].copy_(w)
        self.optimiser.load(s["optimiser"])
        self.step, self.before, self.begun = s["step"], s["seconds"], s["begun"]

    def save(self):
        """state.pt and model/."""
        state = {"weights": {n: w.detach().clone() for n, w in self.m.w.items()}, "optimiser": self.optimiser.state(),
                 "step": self.step, "seconds": self.spent(), "begun": self.begun}
        path = os.path.join(self.a.out, "state.pt")
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
        place = os.path.join(self.a.out, "model")
        size = export.export(self.m, place + ".new")
        shutil.rmtree(place, ignore_errors=True)
        os.replace(place + ".new", place)
        self.write(exported_bytes=size)

    def rehearse(self, length):
        """A length once without a step, and its recording: what does not fit or run shows here, not in a step.

        When memory runs out, this and all later passes are computed twice, to need less. When something else fails,
        the steps are not recorded, then nothing is compiled, then no kernel is used.
        """
        begun = time.monotonic()
        while True:
            self.steps.pop(length, None)
            try:
                self.steps[length] = Step(self, self.batches[0, length][1])
                ms = self.steps[length].rehearse("recorded" in self.uses, self.pool)
                break
            except torch.cuda.OutOfMemoryError:
                if self.m.save_memory:
                    raise
                self.m.save_memory = True
            except Exception as error:
                if not self.uses:
                    raise
                self.give_up(self.uses[-1], error)
            self.steps.clear()
            torch.cuda.empty_cache()
        frames = torch._dynamo.utils.counters["frames"]
        self.write(rehearsed=length, took=round(time.monotonic() - begun, 1), step_ms=round(ms, 1), uses=self.uses,
                   compiled=f"{frames['ok']} of {frames['total']}", save_memory=self.m.save_memory,
                   gpu_gib=round(torch.cuda.max_memory_reserved() / 2 ** 30, 1) if self.a.device == "cuda" else 0)

    def give_up(self, what, error):
        """Goes on without one of `uses`."""
        self.write(gives_up=what, error=f"{type(error).__name__}: {str(error)[:400]}")
        self.uses.remove(what)
        if what == "kernels":
            self.m.use_kernels(False)
        if what == "compiled":
            self.m.f = self.m.plain

    def fuse(self):
        """Takes the kernels and compiled functions, if they give here what plain PyTorch gives."""
        kind, limit = (torch.bfloat16, 2e-2) if self.a.mode == "bf16" else (torch.float32, 1e-3)
        c = self.m.c
        shape = {"t": 2 * c.sliding_window, "heads": c.num_attention_heads, "d": c.head_dim, "w": c.sliding_window,
                 "c": 3 * c.index_topk, "k": c.index_topk}
        self.uses = ["kernels", "compiled", "recorded"]
        try:
            wrong = [name for name, good in (("sinkhorn", sinkhorn.agrees("cuda")),
                                             ("attention", attention.agrees("cuda", kind, limit, **shape)),
                                             ("experts", architecture.grouped_agrees("cuda", kind, limit))) if not good]
            if wrong:
                raise RuntimeError(f"other results: {', '.join(wrong)}")
            self.m.use_kernels(True)
        except Exception as error:
            self.give_up("kernels", error)
        try:
            self.m.fuse()
            for name in self.m.unlike():
                self.m.f[name] = self.m.plain[name]
                self.write(uncompiled=name)
        except Exception as error:
            self.give_up("compiled", error)
        self.pool = torch.cuda.graph_pool_handle()
        self.write(uses=self.uses)

    def prepare(self):
        """Kernels, the length that needs most, and the first one. Others are rehearsed when they are due."""
        if not quant.agrees(self.a.device):
            raise SystemExit(f"number formats come out differently on {self.a.device}: training there would be wrong")
        if self.a.fuse and self.a.device == "cuda":
            self.fuse()
        for length in (max(l for _, l in self.lengths), self.length()):
            if length not in self.steps:
                self.rehearse(length)
        if self.a.profile:
            self.profile()
        if self.begun is None:
            self.begun = self.spent()

    def profile(self):
        """Kernels of two steps of the first length, by their time, in profile.txt. Changes nothing."""
        step = self.steps[self.length()]
        with torch.profiler.profile() as p:
            for _ in range(2):
                step.run_once()
            step.loss()
        with open(os.path.join(self.a.out, "profile.txt"), "w") as f:
            f.write(p.key_averages().table(sort_by="self_device_time_total", row_limit=80, max_name_column_width=90))

    def evaluate(self, length, **more):
        bits = held_out(self.m, self.corpus.held, length, 2 * self.a.tokens)
        self.write(held_out_bpb=round(bits, 4), held_out_length=length, **more)

    def keys(self):
        """(step, length) as they will be asked for; a loader runs a few ahead."""
        step = self.step
        while True:
            yield step, self.length()
            step += 1

    def run(self):
        loader = DataLoader(self.batches, batch_size=None, sampler=self.keys(), num_workers=self.a.workers,
                            prefetch_factor=4 if self.a.workers else None)
        batches = iter(loader)          # its processes start before anything is compiled
        self.prepare()
        bad = torch.zeros((), device=self.a.device)
        told, saved, seen, ends = time.monotonic(), time.monotonic(), 0, []
        for length, batch in batches:
            if self.part() >= 1:
                break
            if length not in self.steps:
                self.rehearse(length)
            note, live = self.steps[length].take(batch, self.optimiser.dial(self.part()))
            bad = torch.where(live, 0, bad + 1)
            if self.a.device == "cuda":
                ends.append(torch.cuda.Event())
                ends[-1].record()
                if len(ends) > AHEAD:
                    ends.pop(0).synchronize()
            self.step, seen = self.step + 1, seen + batch["ids"].shape[0] * length
            if time.monotonic() - told > self.a.tell:
                if float(bad) > 20:
                    raise SystemExit("20 steps in a row had no finite gradient")
                numbers = {k: round(float(v), 4) for k, v in note.items() if v is not None}
                self.write(length=length, part=round(self.part(), 3),
                           tokens_s=round(seen / (time.monotonic() - told)), **numbers)
                told, seen = time.monotonic(), 0
            if time.monotonic() - saved > 60 * self.a.export_minutes:
                self.evaluate(min(2048, self.a.longest))
                self.save()
                saved = told = time.monotonic()
                seen = 0
        self.evaluate(self.a.longest, done=True)
        self.save()


def main():
    """Command line."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--corpus", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--shape", default=os.path.join(root, "scenarios", "models", "small.json"))
    a.add_argument("--minutes", type=float, default=20, help="of training, start and compiling included")
    a.add_argument("--steps", type=int, default=0, help="instead of minutes")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--clip", type=float, default=0, help="part of the sequences whose windows are clipped as by replay")
    a.add_argument("--tokens", type=int, default=32768, help="of a step")
    a.add_argument("--longest", type=int, default=8192)
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--mode", default="bf16", choices=("bf16", "f32"))
    a.add_argument("--fuse", action="store_true", help="kernels, compiled functions, recorded steps where they work")
    a.add_argument("--workers", type=int, default=8, help="processes that make batches")
    a.add_argument("--tell", type=float, default=10, help="seconds between lines of the log")
    a.add_argument("--export-minutes", type=float, default=7)
    a.add_argument("--profile", action="store_true", help="first, two steps' kernels into profile.txt")
    a.add_argument("--resume", action="store_true")
    a = a.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    Run(a).run()


if __name__ == "__main__":
    main()
