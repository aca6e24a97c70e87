"""Trains a shape on a corpus for a given time and exports the model as it goes.

    train.py --corpus CORPUS.xz --out DIR [--shape scenarios/models/small.json] [--minutes 20] [--clip 0.5]

DIR gets log.jsonl (one line of numbers every so often), state.pt (all of training, for --resume) and model/ (a
checkpoint that cedar reads, written anew at each export). Batches and first weights follow from --seed; how far the
training comes within its time does not, and sums on a GPU are not ordered, so two runs differ in the last digits.
"""
import argparse
import json
import math
import os
import shutil
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import data
import export
import model as architecture
import quant
import sinkhorn

# (part of the time, length of the sequences from there on)
LENGTHS = ((0, 512), (.12, 1024), (.3, 2048), (.6, 4096), (.85, 8192))
WARM, DECAY = .01, .45              # parts of the time: learning rates rise, and fall to 0
RATES = {"muon": 3e-3, "adam": 2e-3, "table": 3e-3, "embed": 1e-2, "mix": 3e-4}
KL_ROWS, ANCHORS = 64, 64           # rows of a sequence for the indexer's loss; draft blocks of a sequence
BALANCE = 1e-2, 1e-4                # step of the routers' biases, at the start and at the end


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


class Muon:
    """Muon over matrices and stacks of them: tensors of one shape are stepped together."""

    def __init__(self, params, decay=.1, momentum=.95):
        self.decay, self.momentum, self.groups = decay, momentum, {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.state = {shape: torch.zeros(len(g), *shape, device=g[0].device) for shape, g in self.groups.items()}

    @torch.no_grad()
    def step(self, rate):
        for shape, group in self.groups.items():
            grad, m = torch.stack([p.grad for p in group]), self.state[shape]
            m.mul_(self.momentum).add_(grad)
            update = orthogonal(grad + self.momentum * m) * (.2 * math.sqrt(max(shape[-2:])))
            for p, u in zip(group, update):
                p.mul_(1 - rate * self.decay).sub_(u, alpha=rate)


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
    """Muon for what is stored as FP8 or FP4 matrices, Adam for the rest. Router biases are set by balance alone."""

    def __init__(self, m):
        kind = {n: family(n, k) for n, k in m.kind.items()}
        learns = {n: w for n, w in m.w.items() if w.requires_grad and not n.endswith("gate.bias")}
        self.params = list(learns.values())
        self.muon = Muon([w for n, w in learns.items() if kind[n] == "muon"])
        groups = [{"params": [w for n, w in learns.items() if kind[n] == g], "kind": g} for g in RATES if g != "muon"]
        self.adam = torch.optim.AdamW([g for g in groups if g["params"]], betas=(.9, .95), eps=1e-10, weight_decay=0,
                                      fused=m.device == "cuda")

    def step(self, part):
        """part of the time gone -> one step, gradients clipped to norm 1."""
        factor = min(1, part / WARM + .01, (1 - part) / DECAY + .01)
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        if not math.isfinite(float(norm)):
            return float("nan")
        for g in self.adam.param_groups:
            g["lr"] = RATES[g["kind"]] * factor
        self.adam.step()
        self.muon.step(RATES["muon"] * factor)
        return float(norm)

    def state(self):
        return {"adam": self.adam.state_dict(), "muon": self.muon.state}

    def load(self, state):
        self.adam.load_state_dict(state["adam"])
        self.muon.state = state["muon"]


@torch.no_grad()
def balance(m, counts, part):
    """Moves the routers' biases towards even loads."""
    for p, n in counts.items():
        n = n.to(m.real)
        m.w[f"{p}.ffn.gate.bias"].add_(torch.sign(n.mean() - n), alpha=BALANCE[0] * (1 - part) + BALANCE[1])


# --- losses -----------------------------------------------------------------------------------------------------------

def window_bounds(rng, rows, length, share, device):
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
    return early.to(device), late.to(device)


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


def draft_loss(m, more, ids, logits, rng):
    """The drafter's losses: next tokens of draft blocks, and whether the model itself would have chosen the same."""
    size = m.c.dspark_block_size
    at = torch.from_numpy(rng.integers(0, ids.shape[1] - size - 2, ANCHORS)).to(ids.device)
    drafted, confidence, counts = m.draft(more["features"], ids, at)
    want = at[:, None] + 2 + torch.arange(size, device=ids.device)
    text = F.cross_entropy(drafted.flatten(0, 2).float(), ids[:, want].flatten())
    chosen = logits.detach()[:, want - 1].argmax(-1)
    right = (drafted.detach().argmax(-1) == chosen).float()
    return text + F.binary_cross_entropy_with_logits(confidence.float(), right), right.mean(), counts


def losses(m, ids, weights, step, clip, seed):
    """All losses of a batch -> the sum to descend, numbers to log, tokens per expert."""
    rng = data.np.random.default_rng([seed, step, 1 << 20])
    x, y, w = ids[:, :-1], ids[:, 1:], weights[:, 1:]
    lo = window_bounds(rng, *x.shape, clip, ids.device) if clip else None
    rows = torch.from_numpy(data.np.sort(rng.permutation(x.shape[1])[:KL_ROWS])).to(ids.device)
    logits, more = m.forward(x, lo, rows)
    each = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), reduction="none").view(y.shape)
    main = (each * w).sum() / w.sum()
    index, parts = follow(more["students"], more["teachers"])
    draft, right, counts = draft_loss(m, more, x, logits, rng) if m.c.num_nextn_predict_layers else (0., None, {})
    more["counts"].update(counts)
    note = {"loss": main.detach(), "plain": each[w == 1].mean().detach(), "answers": each[w >= 4].mean().detach(),
            "index": parts.mean(), "draft_right": right}
    return main + index + .3 * draft, note, more["counts"]


@torch.no_grad()
def held_out(m, documents, length, rows=4, batches=4):
    """Bits per byte of held-out text, sequences of `length`."""
    total = 0.
    for k in range(batches):
        made = [data.tokens(data.text_parts(data.np.random.default_rng([7, k, r]), documents, length))[0][:length + 1]
                for r in range(rows)]
        ids = torch.from_numpy(data.np.stack(made)).long().to(m.device)
        logits = m.forward(ids[:, :-1])[0]
        total += float(F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()))
    return total / batches / math.log(2)


# --- the run ----------------------------------------------------------------------------------------------------------

class Batches(Dataset):
    """Batches by (step, length)."""

    def __init__(self, documents, seed, tokens):
        self.documents, self.seed, self.tokens = documents, seed, tokens

    def __getitem__(self, key):
        step, length = key
        rows = max(1, self.tokens // length)
        ids, weights = data.batch(self.documents, self.seed, step, rows, length)
        return step, torch.from_numpy(ids).long(), torch.from_numpy(weights)


class Run:
    """One training run."""

    def __init__(self, a):
        self.a, self.start = a, time.monotonic()
        self.corpus = data.Corpus(a.corpus)
        self.m = architecture.Model(architecture.Shape(a.shape), data.token_map(), a.device, a.mode)
        self.m.initialise(a.seed)
        self.optimiser, self.step, self.before = Optimiser(self.m), 0, 0.
        self.lengths, self.evaluated = [(p, min(l, a.longest)) for p, l in LENGTHS], min(2048, a.longest)
        os.makedirs(a.out, exist_ok=True)
        if a.resume:
            self.resume()
        self.log = open(os.path.join(a.out, "log.jsonl"), "a")

    def part(self):
        """Part of the budget that is spent: of the steps, or of the time."""
        if self.a.steps:
            return min(1., self.step / self.a.steps)
        return min(1., (self.before + time.monotonic() - self.start) / (60 * self.a.minutes))

    def length(self):
        return [l for p, l in self.lengths if p <= self.part()][-1]

    def write(self, **numbers):
        seconds = round(self.before + time.monotonic() - self.start, 1)
        known = {k: v for k, v in numbers.items() if not isinstance(v, float) or math.isfinite(v)}
        line = json.dumps({"step": self.step, "seconds": seconds} | known)
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def resume(self):
        s = torch.load(os.path.join(self.a.out, "state.pt"), map_location=self.a.device, weights_only=True)
        with torch.no_grad():
            for name, w in s["weights"].items():
                self.m.w[name].copy_(w)
        self.optimiser.load(s["optimiser"])
        self.step, self.before = s["step"], s["seconds"]

    def save(self):
        """state.pt and model/."""
        state = {"weights": self.m.w, "optimiser": self.optimiser.state(), "step": self.step,
                 "seconds": self.before + time.monotonic() - self.start}
        path = os.path.join(self.a.out, "state.pt")
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
        place = os.path.join(self.a.out, "model")
        size = export.export(self.m, place + ".new")
        shutil.rmtree(place, ignore_errors=True)
        os.replace(place + ".new", place)
        self.write(exported_bytes=size)

    def backward(self, step, ids, weights):
        """Gradients of a batch. When memory runs out, this and all later passes are computed twice, to need less."""
        while True:
            try:
                on = [t.to(self.a.device) for t in (ids, weights)]
                total, note, counts = losses(self.m, *on, step, self.a.clip, self.a.seed)
                total.backward()
                return note, counts
            except torch.cuda.OutOfMemoryError:
                if self.m.save_memory:
                    raise
            total = note = counts = None
            self.forget()
            torch.cuda.empty_cache()
            self.m.save_memory = True
            self.write(save_memory=True, length=ids.shape[1] - 1)

    def rehearse(self):
        """Every length once, longest first, without a step: what does not fit or compile shows now, not at the end."""
        for length in sorted({l for _, l in self.lengths}, reverse=True):
            self.backward(*Batches(self.corpus.train, self.a.seed, self.a.tokens)[0, length])
            self.forget()
            self.write(rehearsed=length, save_memory=self.m.save_memory,
                       gpu_gib=round(torch.cuda.max_memory_allocated() / 2 ** 30, 1) if self.a.device == "cuda" else 0)
        self.write(held_out_bpb_before=round(held_out(self.m, self.corpus.held, self.evaluated, batches=1), 4))

    def forget(self):
        for p in self.optimiser.params:
            p.grad = None

    def kernel_works(self):
        """Whether the fused Sinkhorn rounds can be used."""
        try:
            return self.a.fuse and self.a.device == "cuda" and sinkhorn.agrees("cuda")
        except Exception as error:
            self.write(sinkhorn=f"plain: {type(error).__name__}: {str(error)[:300]}")
            return False

    def fused_rehearsal(self):
        """A rehearsal with compiled functions; False when they fail."""
        try:
            self.rehearse()
            return True
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            self.write(fuse=f"given up: {type(error).__name__}: {str(error)[:300]}")
            return False

    def prepare(self):
        """Takes the fused kernels that work here, and rehearses."""
        if not quant.agrees(self.a.device):
            raise SystemExit(f"number formats come out differently on {self.a.device}: training there would be wrong")
        fused = self.kernel_works()
        self.m.sinkhorn = sinkhorn.fused if fused else sinkhorn.plain
        plain = self.m.f
        if self.a.fuse:
            self.m.fuse()
        if not self.a.fuse or not self.fused_rehearsal():
            self.m.f = plain
            self.forget()
            self.rehearse()
        self.write(fused_sinkhorn=fused, fused_rows=self.m.f is not plain)

    def keys(self):
        """(step, length) as they will be asked for; a loader runs a few ahead."""
        step = self.step
        while True:
            yield step, self.length()
            step += 1

    def run(self):
        loader = DataLoader(Batches(self.corpus.train, self.a.seed, self.a.tokens), batch_size=None,
                            sampler=self.keys(), num_workers=self.a.workers,
                            prefetch_factor=4 if self.a.workers else None)
        batches = iter(loader)          # its processes start before anything is compiled
        self.prepare()
        bad, told, saved, seen = 0, time.monotonic(), time.monotonic(), 0
        for step, ids, weights in batches:
            if self.part() >= 1:
                break
            note, counts = self.backward(step, ids, weights)
            norm = self.optimiser.step(self.part())
            balance(self.m, counts, self.part())
            self.forget()
            bad = bad + 1 if math.isnan(norm) else 0
            if bad > 20:
                raise SystemExit("20 steps in a row had no finite gradient")
            self.step, seen = step + 1, seen + weights.shape[0] * (weights.shape[1] - 1)
            if time.monotonic() - told > self.a.tell:
                load = torch.stack([n.max() / n.float().mean() for n in counts.values()]).max()
                self.write(length=weights.shape[1] - 1, part=round(self.part(), 3), norm=round(norm, 3),
                           busiest=round(float(load), 2), tokens_s=round(seen / (time.monotonic() - told)),
                           **{k: round(float(v), 4) for k, v in note.items() if v is not None})
                told, seen = time.monotonic(), 0
            if time.monotonic() - saved > 60 * self.a.export_minutes:
                self.write(held_out_bpb=round(held_out(self.m, self.corpus.held, self.evaluated), 4))
                self.save()
                saved = told = time.monotonic()
        self.write(held_out_bpb=round(held_out(self.m, self.corpus.held, self.a.longest), 4), done=True)
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
    a.add_argument("--fuse", action="store_true", help="compile the functions of one row; given up when that fails")
    a.add_argument("--workers", type=int, default=8, help="processes that make batches")
    a.add_argument("--tell", type=float, default=10, help="seconds between lines of the log")
    a.add_argument("--export-minutes", type=float, default=3)
    a.add_argument("--resume", action="store_true")
    a = a.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    Run(a).run()


if __name__ == "__main__":
    main()
