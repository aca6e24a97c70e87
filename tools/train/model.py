"""The DeepSeek-V4.1 text model in PyTorch, for training: whole sequences at once, every quantiser of the engine in the
loop with a straight-through gradient.

Shapes: B sequences, T tokens, D hidden, n residual streams, H heads, d head_dim, W window, C entries of a global cache,
K picked entries. All sequences of a batch start at position 0. Names of weights are those of the checkpoint without
".weight"; the routed experts of a layer are one stacked tensor "layers.L.ffn.experts.wX" [experts, out, in].

What learns from what: the loss of the next token trains all but the indexer and the drafter. The indexer learns the
attention of the layers that use its picks (KL, its inputs detached); the drafter learns the text from detached
features.
"""
import json
import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import attention
import quant
import sinkhorn

QUANTISER = {"fp8": quant.tiles, "fp4": quant.fp4q32, "rows": quant.fp8q32, "bf16": quant.bf16}
SCORE_ELEMENTS = 1 << 28            # index scores made at a time when picking


class Shape:
    """The published keys of config.json as attributes, and what follows from them."""

    def __init__(self, path):
        with open(path) as f:
            self.json = json.load(f)
        self.__dict__.update(self.json["text_config"])
        self.cut = max(self.kv_source_layer_ids)
        self.grams = self.engram_max_ngram_size - 1
        rows, primes = self.grams * self.engram_n_heads, self._primes()
        self.primes = {l: next_n(primes, rows) for l in self.engram_layer_ids}
        given = self.json["text_config"].get("engram_multipliers")
        self.multipliers = dict(zip(self.engram_layer_ids, given or map(self._multipliers, self.engram_layer_ids)))
        assert [sum(p) for p in self.primes.values()] == self.engram_num_embeddings, "engram_num_embeddings"

    def _primes(self):
        x = self.engram_vocab_size
        while True:
            if x > 1 and all(x % q for q in range(2, math.isqrt(x) + 1)):
                yield x
            x += 1

    def _multipliers(self, layer):
        bound = (2 ** 63 - 1) // self.engram_compressed_vocab_size // 2
        draw = np.random.default_rng(10007 * layer).integers(0, bound, self.engram_max_ngram_size)
        return [2 * int(v) + 1 for v in draw]

    def is_kv(self, i):
        return i in self.kv_source_layer_ids

    def is_index(self, i):
        return i in self.index_source_layer_ids

    def tensors(self):
        """Every tensor as (name, kind, shape), scales left out, routed experts stacked.

        kind: fp8, fp4, rows, bf16, f32.
        """
        d, n, hd, ql, v = self.hidden_size, self.hc_mult, self.head_dim, self.q_lora_rank, self.vocab_size
        lora, heads, moe = self.o_groups * self.o_lora_rank, self.num_attention_heads, self.moe_intermediate_size
        last = f"mtp.{self.num_nextn_predict_layers - 1}"
        yield from (("embed", "bf16", (v, d)), ("head", "bf16", (v, d)), ("norm", "bf16", (d,)))
        for p, experts in self.blocks():
            for site in ("attn", "ffn"):
                yield from ((f"{p}.{site}_norm", "bf16", (d,)), (f"{p}.hc_{site}_fn", "f32", ((2 + n) * n, n * d)),
                            (f"{p}.hc_{site}_base", "f32", ((2 + n) * n,)), (f"{p}.hc_{site}_scale", "f32", (3,)))
            yield from ((f"{p}.attn.attn_sink", "f32", (heads,)), (f"{p}.attn.wq_a", "fp8", (ql, d)),
                        (f"{p}.attn.q_norm", "bf16", (ql,)), (f"{p}.attn.wq_b", "fp8", (heads * hd, ql)),
                        (f"{p}.attn.wkv", "fp8", (hd, d)), (f"{p}.attn.kv_norm", "bf16", (hd,)),
                        (f"{p}.attn.wo_a", "fp8", (lora, heads * hd // self.o_groups)),
                        (f"{p}.attn.wo_b", "fp8", (d, lora)), (f"{p}.ffn.gate", "bf16", (experts, d)),
                        (f"{p}.ffn.gate.bias", "f32", (experts,)), (f"{p}.ffn.gate.bias_vl", "f32", (experts,)))
            for x, kind, lead in (("experts", "fp4", (experts,)), ("shared_experts", "fp8", ())):
                yield from ((f"{p}.ffn.{x}.w1", kind, lead + (moe, d)), (f"{p}.ffn.{x}.w2", kind, lead + (d, moe)),
                            (f"{p}.ffn.{x}.w3", kind, lead + (moe, d)))
        for i in self.kv_source_layer_ids:
            c, x = f"layers.{i}.attn.compressor", f"layers.{i}.attn.indexer"
            yield c + ".wkv", "bf16", (hd, d)
            if self.compress_ratios[i] > 1:
                yield c + ".wgate", "bf16", (hd, d)
            yield from ((c + ".norm", "bf16", (hd,)), (x + ".wk", "bf16", (self.index_head_dim, hd)),
                        (x + ".k_norm", "bf16", (self.index_head_dim,)))
        for i in self.index_source_layer_ids:
            x = f"layers.{i}.attn.indexer"
            yield x + ".wq_b", "fp8", (self.index_n_heads * self.index_head_dim, ql)
            yield x + ".weights_proj", "bf16", (self.index_n_heads, d)
        for i in self.engram_layer_ids:
            e, wide = f"layers.{i}.engram", len(self.primes[i]) * self.engram_head_dim
            yield from ((e + ".embed", "rows", (sum(self.primes[i]), self.engram_head_dim)),
                        (e + ".wkv", "fp8", ((n + 1) * d, wide)), (e + ".q_weight", "bf16", (n, d)),
                        (e + ".k_weight", "bf16", (n, d)))
        if self.num_nextn_predict_layers:
            yield from (("mtp.0.main_proj", "fp8", (d, len(self.dspark_target_layer_ids) * d)),
                        ("mtp.0.main_norm", "bf16", (d,)), (last + ".norm", "bf16", (d,)),
                        (last + ".markov_head.embed", "bf16", (v, self.dspark_markov_rank)),
                        (last + ".markov_head.head", "bf16", (v, self.dspark_markov_rank)),
                        (last + ".confidence_head.proj", "bf16", (1, d + self.dspark_markov_rank)))

    def blocks(self):
        """(name prefix, routed experts) of the backbone's layers, then of the draft stages."""
        yield from ((f"layers.{i}", self.n_routed_experts) for i in range(self.num_hidden_layers))
        yield from ((f"mtp.{m}", self.dspark_n_routed_experts) for m in range(self.num_nextn_predict_layers))


def next_n(iterator, n):
    """The next n values as a list."""
    return [next(iterator) for _ in range(n)]


# --- functions of one row, which `fuse` compiles: rows are the first axis, so that shapes stay few -------------------

def rms_norm(x, weight, eps, out):
    """RMSNorm of rows [N, D], computed in the type of `weight`, given in `out`."""
    x = x.to(weight.dtype)
    return (weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps))).to(out)


def hc_scale(h, real, eps):
    """1 / RMS of all streams of a row: [N, nD] -> [N, 1]."""
    v = h.to(real)
    return torch.rsqrt((v * v).mean(-1, keepdim=True) + eps)


def hc_unproject(part, h, push):
    """Gradient of the streams: through the product, part [N, nD], and through the norm, push [N, 1]."""
    return (part + h.to(part.dtype) * push).to(h.dtype)


def hc_coefficients(m, base, scale, eps):
    """mHC coefficients before Sinkhorn: m [N, (2+n)n] -> pre [N, n], post [N, n], comb [N, from, to]."""
    n = math.isqrt(m.shape[-1] + 1) - 1
    pre = torch.sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
    return pre, post, torch.softmax((m[:, 2 * n:] * scale[2] + base[2 * n:]).unflatten(-1, (n, n)), -1) + eps


def hc_expand(y, h, post, comb):
    """New streams from a sub-layer's output y [N, D] and the streams h [N, n, D]; comb contracts its first index."""
    x = post[..., None] * y[:, None, :].to(post.dtype)
    for j in range(h.shape[1]):
        x = x + comb[:, j, :, None] * h[:, j, None, :].to(post.dtype)
    return x.to(h.dtype)


def hc_collapse(h, pre):
    """[N, n, D], [N, n] -> [N, D], in the streams' type."""
    return (pre[..., None] * h.to(pre.dtype)).sum(-2).to(h.dtype)


def hc_collapse_norm(h, pre, weight, eps, out):
    """`rms_norm` of `hc_collapse`."""
    return rms_norm(hc_collapse(h, pre), weight, eps, out)


def rotate(x, cos, sin):
    """Rotates the last channels, adjacent pairs: x [N, H, d], cos and sin [N, pairs]."""
    n = 2 * cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    a, b = x[..., -n::2].to(cos.dtype), x[..., 1 - n::2].to(cos.dtype)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
    return torch.cat((x[..., :-n], turned), -1)


def swiglu(ab, share, limit, out):
    """silu(min(a, limit)) * clamp(b) * share of rows [N, (a, b)], in the type of `share` [N, 1]. limit 0: no clamps."""
    a, b = ab.to(share.dtype).chunk(2, -1)
    if limit:
        a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    return (F.silu(a) * b * share).to(out)


def gather_sum(y, places, real):
    """Sum of the rows of y at places [N, k], in `real`."""
    return y[places].to(real).sum(1)


def engram_gate(h, kv, q_weight, k_weight, eps):
    """Streams h [N, n, D] plus gated values; kv [N, (n keys, value)]."""
    d, real = h.shape[-1], q_weight.dtype
    key, value = kv[:, :-d].unflatten(-1, h.shape[1:]).to(real), kv[:, -d:].to(real)
    x = h.to(real)
    dot = (x * q_weight * k_weight * key).sum(-1)
    dot = dot * torch.rsqrt((x * x).mean(-1) + eps) * torch.rsqrt((key * key).mean(-1) + eps) * d ** -.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    return (x + gate[..., None] * value[:, None]).to(h.dtype)


def fp8_rows(x):
    """Quantiser of window rows and of inputs of FP8 and FP4 linear layers, values only."""
    return quant.fp8q32(x)[0]


def fp4_entries(x):
    """Quantiser of global entries, values only."""
    return quant.fp4q16(x)[0]


def fp4_keys(x):
    """Quantiser of index keys and queries, values only."""
    return quant.fp4q32(x)[0]


FUSED = ("rms_norm", "hc_scale", "hc_unproject", "hc_coefficients", "hc_expand", "hc_collapse", "hc_collapse_norm",
         "rotate", "swiglu", "gather_sum", "engram_gate", "fp8_rows", "fp4_entries", "fp4_keys")
VALUES = ("hc_scale", "hc_unproject", "rotate", "gather_sum", "fp8_rows", "fp4_entries", "fp4_keys")
# VALUES: called for their values alone, their gradients are written below or those of the identity


class _Project(torch.autograd.Function):
    """m [N, F] = streams h [N, nD] times fn [F, nD], over the RMS of the row: of h, no copy in float32 is kept."""

    @staticmethod
    def forward(ctx, h, fn, eps, f):
        scale = f["hc_scale"](h, fn.dtype, eps)
        m = (h.to(fn.dtype) @ fn.T) * scale
        ctx.save_for_backward(h, fn, scale, m)
        ctx.f = f
        return m

    @staticmethod
    def backward(ctx, grad):
        h, fn, scale, m = ctx.saved_tensors
        through = grad * scale
        push = (grad * m).sum(-1, keepdim=True) * scale * scale / -h.shape[-1]
        return ctx.f["hc_unproject"](through @ fn, h, push), through.T @ h.to(fn.dtype), None, None


class _Rotate(torch.autograd.Function):
    """`rotate` of any leading axes: its gradient turns the other way."""

    @staticmethod
    def forward(ctx, x, cos, sin, back, rotate):
        ctx.cos, ctx.sin, ctx.back, ctx.rotate = cos, sin, back, rotate
        return rotate(x.reshape(len(cos), -1, x.shape[-1]), cos, -sin if back else sin).view(x.shape)

    @staticmethod
    def backward(ctx, grad):
        flat, sin = grad.reshape(len(ctx.cos), -1, grad.shape[-1]), ctx.sin if ctx.back else -ctx.sin
        return ctx.rotate(flat, ctx.cos, sin).view(grad.shape), None, None, None, None


class _Spread(torch.autograd.Function):
    """Rows of x [N, D] in the order of experts: [Nk, D]. source: row of each; places [N, k]: where each row went."""

    @staticmethod
    def forward(ctx, x, source, places, f):
        ctx.places, ctx.f, ctx.real = places, f, torch.promote_types(x.dtype, torch.float32)
        return x.index_select(0, source)

    @staticmethod
    def backward(ctx, grad):
        return ctx.f["gather_sum"](grad, ctx.places, ctx.real).to(grad.dtype), None, None, None


class _Gather(torch.autograd.Function):
    """Sum of the rows that `_Spread` made of one, [Nk, D] -> [N, D], in `real`."""

    @staticmethod
    def forward(ctx, y, source, places, real, f):
        ctx.source, ctx.kind = source, y.dtype
        return f["gather_sum"](y, places, real)

    @staticmethod
    def backward(ctx, grad):
        return grad.to(ctx.kind).index_select(0, ctx.source), None, None, None, None


def grouped(rows, weights, ends):
    """rows [N, in], sorted by expert, times weights [experts, out, in]; ends: where each expert's rows end."""
    if rows.dtype == torch.bfloat16:
        return F.grouped_mm(rows, weights.mT, offs=ends)
    return each_group(rows, weights, ends)


def each_group(rows, weights, ends):
    """`grouped`, one expert after the other."""
    parts = rows.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ w.T for part, w in zip(parts, weights)])


def grouped_agrees(device, kind, limit):
    """Whether `grouped` gives what `each_group` gives, gradients too, with experts that have no rows."""
    g, got = torch.Generator().manual_seed(1), []
    rows, weights, grad = (torch.randn(s, generator=g).to(device, kind) for s in ((300, 64), (5, 96, 64), (300, 96)))
    ends = torch.tensor([0, 37, 37, 290, 300], dtype=torch.int32, device=device)
    for f in (grouped, each_group):
        leaves = [t.clone().requires_grad_() for t in (rows, weights)]
        y = f(*leaves, ends)
        got.append([y.detach(), *torch.autograd.grad(y, leaves, grad)])
    return all(attention.close(a, b, limit) for a, b in zip(*got))


def compiled(f):
    """f compiled; its rows may be of any number, other sizes are compiled anew."""
    fast, values = torch.compile(f, dynamic=False), f.__name__ in VALUES

    def call(*args):
        args = [a.detach() if values and isinstance(a, torch.Tensor) else a for a in args]
        for a in args:
            if isinstance(a, torch.Tensor) and a.dim() > 1 and a.shape[0] > 64:
                torch._dynamo.maybe_mark_dynamic(a, 0)
        return fast(*args)
    return call


# --- the model --------------------------------------------------------------------------------------------------------

@dataclass
class Slots:
    """What later layers read: entries and index keys of the last KV source, picks of the last index source."""
    entries: torch.Tensor = None        # [B, C, d] quantised
    keys: torch.Tensor = None           # [B, C, index_dim] quantised, gradient to the indexer only
    ratio: int = 1
    picks: torch.Tensor = None          # [B, T, K] entries, -1 = none
    pool: torch.Tensor = None           # [B, T, blocks] bool
    students: list = field(default_factory=list)    # index scores [B, R, C] of the sampled rows, with gradient
    teachers: list = field(default_factory=list)    # attention mass on entries [B, R, C], without


class Model:
    """The model. mode: "wide" (float64), "f32", or "bf16" (products and streams in bf16, the rest in float32)."""

    def __init__(self, shape, token_map, device="cpu", mode="bf16"):
        self.c, self.device, self.save_memory = shape, device, False
        self.real = torch.float64 if mode == "wide" else torch.float32
        self.mm = torch.bfloat16 if mode == "bf16" else self.real
        self.kind = {name: kind for name, kind, _ in shape.tensors()}
        self.token_map = torch.as_tensor(np.asarray(token_map), dtype=torch.int64, device=device)
        self.w, self.ready, self.full, self.turns = {}, {}, {}, {}
        self.f = self.plain = {name: globals()[name] for name in FUSED}
        self.use_kernels(False)

    def use_kernels(self, on):
        """Triton kernels in the place of plain PyTorch."""
        self.sinkhorn = sinkhorn.fused if on else sinkhorn.plain
        self.sparse, self.index_scores = (attention.fused, attention.fused_scores) if on else \
            (attention.plain, attention.plain_scores)

    def fuse(self):
        """Compiles the functions of one row. What cannot be compiled later runs as it is."""
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.automatic_dynamic_shapes = False
        self.f = {name: compiled(f) for name, f in self.f.items()}

    @torch.no_grad()
    def unlike(self):
        """Names of quantisers that do not round as they do uncompiled."""
        x = torch.randn(4096, 128, generator=torch.Generator().manual_seed(1)).to(self.mm)
        x = (x * 2.0 ** (torch.arange(4096) % 32 - 20)[:, None].to(self.mm)).to(self.device)
        names = ("fp8_rows", "fp4_entries", "fp4_keys")
        return [n for n in names if not torch.equal(self.f[n](x), self.plain[n](x))]

    def rows(self, name, lead, *args):
        """A function of rows on tensors whose first `lead` axes count rows."""
        shape = args[0].shape[:lead]
        out = self.f[name](*(a.flatten(0, lead - 1) if isinstance(a, torch.Tensor) and a.shape[:lead] == shape else a
                             for a in args))
        return [o.unflatten(0, shape) for o in out] if isinstance(out, tuple) else out.unflatten(0, shape)

    def straight(self, name, x):
        """A quantiser of rows with the gradient of the identity."""
        return quant.straight(x, lambda v: (self.rows(name, v.dim() - 1, v),))

    def quantise(self, x):
        """FP8Q32 of the inputs of FP8 and FP4 layers."""
        return self.straight("fp8_rows", x).to(self.mm)

    def initialise(self, seed):
        """Seeded weights to train from, each tensor from a stream of its own."""
        for index, (name, _, shape) in enumerate(self.c.tensors()):
            g = torch.Generator().manual_seed(seed * 1_000_003 + index)
            w = initial(name, shape, self.c, g).to(self.device)
            self.w[name] = w.requires_grad_(not name.endswith("gate.bias_vl"))

    def quantise_weights(self):
        """All weights as the engine will read them, those of one kind and shape together; table rows when looked up.

        ready: for products. full: the same values in full precision, of what is not quantised further.
        """
        groups = {}
        for name, w in self.w.items():
            groups.setdefault((self.kind[name], tuple(w.shape)), []).append(name)
        for (kind, _), names in groups.items():
            if kind in ("f32", "rows"):
                self.full.update((n, self.w[n].to(self.real)) for n in names)
                continue
            stack = quant.straight(torch.stack([self.w[n] for n in names]), QUANTISER[kind])
            self.ready.update(zip(names, stack.to(self.mm).unbind()))
            if kind == "bf16":
                self.full.update(zip(names, stack.to(self.real).unbind()))
        for p, _ in self.c.blocks():        # w1 and w3 read the same rows: one product
            for x in ("experts", "shared_experts"):
                self.ready[f"{p}.ffn.{x}.w13"] = torch.cat([self.ready[f"{p}.ffn.{x}.{m}"] for m in ("w1", "w3")], -2)

    def weight(self, name):
        """The weight for products."""
        return self.ready[name]

    def exact(self, name):
        """The weight in full precision: every stored value is a bf16 number."""
        return self.full[name]

    def linear(self, x, name):
        """A layer; those with FP8 weights want a quantised input."""
        return x.to(self.mm) @ self.weight(name).T

    def norm(self, x, name):
        return self.full_norm(x, name, self.mm)

    def full_norm(self, x, name, out):
        return self.rows("rms_norm", x.dim() - 1, x, self.exact(name), self.c.rms_norm_eps, out)

    def remember(self, f, *args):
        """f(*args), forgotten and computed again in the backward pass when memory is short."""
        if not self.save_memory or not torch.is_grad_enabled():
            return f(*args)
        return checkpoint(f, *args, use_reentrant=False, preserve_rng_state=False)

    def angles(self, layer, pos):
        """cos and sin [positions, pairs] of a layer (backbone, then stages)."""
        kind = self.c.compress_ratios[layer] > 0
        if kind not in self.turns:
            self.turns[kind] = torch.as_tensor(self.rotations(kind), device=pos.device)
        angle = pos.double().flatten()[:, None] * self.turns[kind]
        return angle.cos().to(self.real), angle.sin().to(self.real)

    def turn(self, layer, b, t, ratio=1):
        """Angles of the rows of b sequences at positions 0, ratio, ...: [b * t, pairs]. Kept from pass to pass."""
        key = self.c.compress_ratios[layer] > 0, b, t, ratio
        if key not in self.turns:
            self.turns[key] = self.angles(layer, (torch.arange(t, device=self.device) * ratio).repeat(b))
        return self.turns[key]

    def rotated(self, x, angles, back=False):
        """x [..., H, d] or [..., d] turned by the angles of its rows, or turned back."""
        return _Rotate.apply(x, *angles, back, self.f["rotate"])

    def rotations(self, compressed):
        """Rotation frequencies, float64 [pairs]."""
        c, dim, y = self.c, self.c.qk_rope_head_dim, self.c.rope_scaling
        i = np.arange(dim // 2)
        f = float(c.compress_rope_theta if compressed else c.rope_theta) ** (-2.0 * i / dim)
        if compressed:
            at = lambda beta: dim * math.log(y["original_max_position_embeddings"] / (2 * math.pi * beta)) \
                / (2 * math.log(c.compress_rope_theta))
            low, high = max(math.floor(at(y["beta_fast"])), 0), min(math.ceil(at(y["beta_slow"])), dim - 1)
            g = np.clip((i - low) / max(high - low, .001), 0, 1)
            f = f * (1 - g) + f / y["factor"] * g
        return f

    # --- mHC, experts -------------------------------------------------------------------------------------------------

    def hc(self, p, site, h):
        """Coefficients of a site from the streams."""
        m = _Project.apply(h.flatten(0, -3).flatten(1), self.exact(f"{p}.hc_{site}_fn"), self.c.rms_norm_eps, self.f)
        pre, post, comb = self.f["hc_coefficients"](m, self.exact(f"{p}.hc_{site}_base"),
                                                    self.exact(f"{p}.hc_{site}_scale"), self.c.hc_eps)
        comb = self.sinkhorn(comb, self.c.hc_sinkhorn_iters, self.c.hc_eps)
        return [x.unflatten(0, h.shape[:-2]) for x in (pre, post, comb)]

    def collapse(self, h, pre, norm, out):
        """The sub-layer's input: one stream of n, and its norm."""
        return self.rows("hc_collapse_norm", pre.dim() - 1, h, pre, self.exact(norm), self.c.rms_norm_eps, out)

    def expand(self, y, h, post, comb):
        return self.rows("hc_expand", post.dim() - 1, y, h, post, comb)

    def block(self, p, h, pre, attend, k):
        """One block -> streams, pre for the next, tokens of each expert."""
        pre_a, post, comb = self.remember(self.hc, p, "attn", h)
        h = self.expand(attend(self.collapse(h, pre, f"{p}.attn_norm", self.mm)), h, post, comb)
        pre_f, post, comb = self.remember(self.hc, p, "ffn", h)
        y, counts = self.remember(self.moe, f"{p}.ffn", self.collapse(h, pre_a, f"{p}.ffn_norm", self.mm), k)
        return self.expand(y, h, post, comb), pre_f, counts

    def moe(self, p, x, k):
        """Routed experts and the shared one. x [..., D] -> [..., D], tokens per expert."""
        lead, x = x.shape[:-1], x.flatten(0, -2)
        z = x.to(self.real) @ self.exact(f"{p}.gate").T
        s = F.softplus(z).clamp(min=1e-20).sqrt()         # the root of 0 has no gradient
        ids = (s + self.exact(f"{p}.gate.bias")).topk(k, sorted=False).indices
        w = s.gather(1, ids)
        w = w / (w.sum(1, keepdim=True) + 1e-20) * self.c.routed_scaling_factor
        x = self.quantise(x)
        y, counts = self.routed(f"{p}.experts", x, ids, w)
        ab = self.linear(x, f"{p}.shared_experts.w13")
        shared = self.quantise(self.f["swiglu"](ab, w.new_ones(len(x), 1), self.c.swiglu_limit, self.mm))
        return (y + self.linear(shared, f"{p}.shared_experts.w2").to(self.real)).to(self.mm).view(*lead, -1), counts

    def routed(self, p, x, ids, w):
        """Sum over the picked experts, rows sorted by expert. No shape depends on the values."""
        (n, k), experts = ids.shape, self.weight(f"{p}.w2").shape[0]
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        counts = (flat[:, None] == torch.arange(experts, device=x.device)).sum(0)
        ends = counts.cumsum(0).int()
        places = torch.empty_like(order).index_copy_(0, order, torch.arange(n * k, device=x.device)).view(n, k)
        source = order // k
        share = w.flatten().index_select(0, order)[:, None]
        ab = grouped(_Spread.apply(x, source, places, self.f), self.weight(f"{p}.w13"), ends)
        y = self.quantise(self.f["swiglu"](ab, share, self.c.swiglu_limit, self.mm))
        return _Gather.apply(grouped(y, self.weight(f"{p}.w2"), ends), source, places, self.real, self.f), counts

    # --- attention ----------------------------------------------------------------------------------------------------

    def query(self, p, x, angles):
        """x [..., D] quantised -> low-rank query [..., q_lora], rotated queries [..., H, d]."""
        qr = self.norm(self.linear(x, f"{p}.wq_a"), f"{p}.q_norm")
        q = self.linear(self.quantise(qr), f"{p}.wq_b").unflatten(-1, (self.c.num_attention_heads, -1))
        return qr, self.rotated(q, angles)

    def window_rows(self, p, x, angles):
        """Window keys of rows x [..., D], quantised."""
        kv = self.norm(self.linear(x, f"{p}.wkv"), f"{p}.kv_norm")
        return self.straight("fp8_rows", self.rotated(kv, angles))

    def output(self, p, o, angles):
        """Inverse rotation and the grouped low-rank output. o [..., H, d] -> [..., D]."""
        c, lead = self.c, o.shape[:-2]
        o = self.rotated(o, angles, back=True).view(-1, c.o_groups, c.num_attention_heads * c.head_dim // c.o_groups)
        wo_a = self.weight(f"{p}.wo_a").view(c.o_groups, c.o_lora_rank, -1)
        low = torch.einsum("ngi,goi->ngo", o.to(self.mm), wo_a).flatten(1)
        return self.linear(self.quantise(low), f"{p}.wo_b").view(*lead, -1)

    def compress(self, i, x, s):
        """Global entries and index keys of KV source i for all rows x [B, T, D]."""
        c, p, r = self.c, f"layers.{i}.attn", self.c.compress_ratios[i]
        x = x[:, :x.shape[1] // r * r]
        z = self.linear(x, f"{p}.compressor.wkv")
        if r > 1:
            share = self.linear(x, f"{p}.compressor.wgate").to(self.real).unflatten(1, (-1, r)).softmax(2)
            z = (share * z.to(self.real).unflatten(1, (-1, r))).sum(2).to(self.mm)
        latent = self.norm(z, f"{p}.compressor.norm")
        angles = self.turn(i, *latent.shape[:2], r)
        s.ratio, s.entries = r, self.straight("fp4_entries", self.rotated(latent, angles))
        key = self.norm(self.linear(latent.detach(), f"{p}.indexer.wk"), f"{p}.indexer.k_norm")
        s.keys = self.straight("fp4_keys", self.rotated(key, angles))

    def index_query(self, p, x, qr, angles):
        """Index queries [B, T, heads, dim] and head weights [B, T, heads] of detached inputs."""
        c = self.c
        iq = self.linear(self.quantise(qr.detach()), f"{p}.wq_b").unflatten(-1, (c.index_n_heads, -1))
        iq = self.straight("fp4_keys", self.rotated(iq, angles))
        g = self.linear(x.detach(), f"{p}.weights_proj").to(self.real)
        return iq, g * (c.index_head_dim * c.index_n_heads) ** -.5

    @torch.no_grad()
    def pick(self, i, x, qr, angles, s):
        """Sets the picks of index source i, and the pool at the candidate source."""
        c = self.c
        iq, g = self.index_query(f"layers.{i}.attn.indexer", x, qr, angles)
        b, t, entries = x.shape[0], x.shape[1], s.keys.shape[1]
        visible = (torch.arange(t, device=x.device) + 1) // s.ratio
        step = max(1, SCORE_ELEMENTS // max(1, b * c.index_n_heads * entries))
        picks, pools = [], []
        for a in range(0, t, step):
            z = slice(a, min(t, a + step))
            score = self.index_scores(iq[:, z], g[:, z], s.keys, visible[z])
            if i == c.candidate_source_layer_id:
                pools.append(best_blocks(score, visible[z], c.candidate_block_size, c.candidate_topk_blocks))
            elif s.pool is not None:
                inside = s.pool[:, z].repeat_interleave(c.candidate_block_size, -1)[..., :entries]
                score = score.masked_fill(~inside, -math.inf)
            picks.append(top_k(score, c.index_topk))
        s.picks = torch.cat(picks, 1)
        if pools:
            s.pool = torch.cat(pools, 1)

    def attention(self, i, x, s, lo, rows):
        """Attention of backbone layer i. rows: sampled rows for the indexer's loss, or None."""
        p, (b, t) = f"layers.{i}.attn", x.shape[:2]
        angles = self.turn(i, b, t)
        if self.c.is_kv(i):
            self.compress(i, x, s)
        xq = self.quantise(x)
        qr, q = self.query(p, xq, angles)
        kv = self.window_rows(p, xq, angles)
        far = self.c.compress_ratios[i] > 0 and s.entries.shape[1] > 0
        if far and self.c.is_index(i):
            self.pick(i, x, qr, angles, s)
            if rows is not None:
                at = [a.view(b, t, -1)[:, rows].flatten(0, 1) for a in angles]
                iq, g = self.index_query(p + ".indexer", x[:, rows], qr[:, rows], at)
                s.students.append(attention.plain_scores(iq, g, s.keys, (rows + 1) // s.ratio))
                s.teachers.append(torch.zeros_like(s.students[-1]))
        sink = self.exact(f"{p}.attn_sink")
        if far and rows is not None:
            self.teach(q.detach(), kv.detach(), lo, sink.detach(), rows, s, i)
        args = (s.entries, s.picks) if far else (None, None)
        return self.output(p, self.remember(self.sparse, q, kv, lo, *args, sink, self.c.sliding_window), angles)

    @torch.no_grad()
    def teach(self, q, kv, lo, sink, rows, s, i):
        """Adds this layer's attention to all visible entries, at sampled rows, to what the indexer should follow."""
        d, w = q.shape[-1], self.c.sliding_window
        at = rows[:, None] - torch.arange(w, device=q.device)
        seen = (at >= 0)[None] if lo is None else (at >= 0)[None] & (at[None] >= lo[:, rows, None])
        near = (q[:, rows] @ kv[:, at.clamp(min=0)].mT).to(self.real) * d ** -.5
        near = near.masked_fill(~seen[:, :, None], -math.inf)
        far = torch.einsum("brhd,bcd->brhc", q[:, rows], s.entries.detach()).to(self.real) * d ** -.5
        hidden = torch.arange(far.shape[-1], device=q.device) >= ((rows + 1) // s.ratio)[:, None]
        far = far.masked_fill(hidden[:, None], -math.inf)
        b, r, heads = far.shape[:3]
        every = torch.cat((far, near, sink.view(1, 1, -1, 1).expand(b, r, heads, 1)), -1).softmax(-1)
        mass = every[..., :far.shape[-1]].sum(2)
        s.teachers[-1] += mass
        source = self.c.candidate_source_layer_id
        if source >= 0 and i > source:          # the pool must hold what later index sources will want
            s.teachers[self.c.index_source_layer_ids.index(source)] += mass

    # --- Engram -------------------------------------------------------------------------------------------------------

    def engram_rows(self, i, ids):
        """Table rows of every token: ids [B, T] -> int64 [B, T, rows]."""
        c, back = self.c, [self.token_map[ids]]
        pad = self.token_map[c.engram_pad_token_id]
        for _ in range(c.grams):
            back.append(torch.cat((pad.expand(ids.shape[0], 1), back[-1][:, :-1]), 1))
        m, primes = c.multipliers[i], c.primes[i]
        r, out, offset = back[0] * m[0], [], 0
        for k in range(1, c.grams + 1):
            r = r ^ (back[k] * m[k])
            for prime in primes[(k - 1) * c.engram_n_heads:k * c.engram_n_heads]:
                out.append(r % prime + offset)
                offset += prime
        return torch.stack(out, -1)

    def engram(self, i, h, ids):
        """Adds the looked-up n-grams to the streams."""
        c, p = self.c, f"layers.{i}.engram"
        table = F.embedding(self.engram_rows(i, ids), self.exact(f"{p}.embed"))
        kv = self.linear(self.quantise(self.straight("fp8_rows", table).to(self.mm).flatten(-2)), f"{p}.wkv")
        return self.rows("engram_gate", 2, h, kv, self.exact(f"{p}.q_weight"), self.exact(f"{p}.k_weight"),
                         c.rms_norm_eps)

    # --- whole passes -------------------------------------------------------------------------------------------------

    def embed(self, ids):
        """Streams [..., n, D] and the one-hot pre [..., n], of which gradients are wanted as of any other."""
        e = F.embedding(ids, self.weight("embed"))
        pre = torch.zeros(*ids.shape, self.c.hc_mult, dtype=self.real, device=e.device)
        pre[..., 0] = 1
        pre.requires_grad_(torch.is_grad_enabled())
        return e[..., None, :].expand(*ids.shape, self.c.hc_mult, -1).contiguous(), pre

    def forward(self, ids, lo=None, rows=None):
        """ids [B, T], T a multiple of the window -> logits [B, T, V] and a dict of what losses need.

        lo: (encoder, behind the cut): first window position that a row may read, [B, T] each or None.
        rows: [R] sampled rows for the indexer's loss, or None.
        """
        c, s, features, counts = self.c, Slots(), [], {}
        self.quantise_weights()
        h, pre = self.embed(ids)
        for i in range(c.num_hidden_layers):
            if i in c.engram_layer_ids:
                h = self.remember(self.engram, i, h, ids)
            if i in c.dspark_target_layer_ids:
                features.append(h.detach().to(self.real).mean(-2).to(self.mm))
            low = lo and lo[i > c.cut]
            attend = lambda x: self.attention(i, x, s, low, rows)
            h, pre, counts[f"layers.{i}"] = self.block(f"layers.{i}", h, pre, attend, c.num_experts_per_tok)
        y = self.collapse(h, pre, "norm", self.real)
        more = {"features": features, "counts": counts, "students": s.students, "teachers": s.teachers}
        return y @ self.exact("head").T, more

    def draft(self, features, ids, at):
        """Draft blocks after the positions `at` [A], each given the token that follows it.

        features: of the `forward` before. -> logits [B, A, block, V] along the text's own Markov chain, confidence
        [B, A, block], tokens of each expert.
        """
        c = self.c
        size, w, last = c.dspark_block_size, c.sliding_window, f"mtp.{c.num_nextn_predict_layers - 1}"
        features = self.quantise(torch.cat(features, -1))
        main = self.quantise(self.norm(self.linear(features, "mtp.0.main_proj"), "mtp.0.main_norm"))
        b, t = ids.shape
        block = torch.full((b, len(at), size), c.dspark_noise_token_id, device=ids.device)
        block[..., 0] = ids[:, at + 1]
        h, pre = self.embed(block)
        h = h.detach().requires_grad_(torch.is_grad_enabled())
        pos = at[:, None] + 1 + torch.arange(size, device=at.device)
        ring_at = at[:, None] - torch.arange(w, device=at.device)
        seen = F.pad(ring_at >= 0, (0, size), value=True)
        counts = {}
        for m in range(c.num_nextn_predict_layers):
            p, layer = f"mtp.{m}", c.num_hidden_layers + m
            angles = [a.repeat(b, 1) for a in self.angles(layer, pos)]
            ring = self.window_rows(f"{p}.attn", main, self.turn(layer, b, t))
            ring = attention.gather(ring, ring_at.expand(b, -1, -1))

            def attend(x):
                x = self.quantise(x)
                keys = torch.cat((ring, self.window_rows(f"{p}.attn", x, angles)), 2)
                q = self.query(f"{p}.attn", x, angles)[1]
                logits = torch.einsum("bashd,bakd->bashk", q, keys).to(self.real) * c.head_dim ** -.5
                logits = logits.masked_fill(~seen[None, :, None, None], -math.inf)
                sink = self.exact(f"{p}.attn.attn_sink").view(1, 1, 1, -1, 1).expand(*logits.shape[:-1], 1)
                share = torch.cat((logits, sink), -1).softmax(-1)[..., :-1].to(self.mm)
                return self.output(f"{p}.attn", torch.einsum("bashk,bakd->bashd", share, keys), angles)

            h, pre, counts[p] = self.block(p, h, pre, attend, c.dspark_num_experts_per_tok)
        y = self.rows("hc_collapse", 3, h, pre)
        logits = self.full_norm(y, f"{last}.norm", self.real) @ self.exact("head").detach().T
        e = F.embedding(ids[:, pos], self.exact(f"{last}.markov_head.embed"))
        logits = logits + e @ self.exact(f"{last}.markov_head.head").T
        seen = torch.cat((y.detach().to(self.real), e.detach()), -1)
        confidence = seen @ self.exact(f"{last}.confidence_head.proj")[0]
        return logits, confidence, counts


def top_k(score, k):
    """Best k columns, higher score first, then lower index: [..., C] -> [..., k] ascending, -1 at the end."""
    c = score.shape[-1]
    if score.device.type == "cpu":
        best, at = score.sort(stable=True, dim=-1, descending=True)
        best, at = best[..., :k], at[..., :k]
    else:                               # ties go anywhere, which training does not mind
        best, at = score.topk(min(k, c), -1, sorted=False)
    at = at.masked_fill(best == -math.inf, c).sort(-1).values
    return F.pad(at.masked_fill(at == c, -1), (0, k - at.shape[-1]), value=-1)


def best_blocks(score, visible, size, count):
    """Blocks of entries in the candidate pool: score [B, T, C], visible [T] -> bool [B, T, blocks]."""
    c = score.shape[-1]
    n = -(-c // size)
    top = F.pad(score, (0, n * size - c), value=-math.inf).unflatten(-1, (n, size)).amax(-1)
    newest = torch.arange(n, device=score.device) == ((visible - 1) // size)[:, None]
    at = top_k(top.masked_fill(newest & (visible > 0)[:, None], math.inf), min(count, n))
    keep = torch.zeros(*top.shape[:-1], n + 1, dtype=torch.bool, device=score.device)
    return keep.scatter_(-1, at.masked_fill(at < 0, n), True)[..., :n]


def initial(name, shape, c, g):
    """Where training starts. Branches begin small, streams nearly keep to themselves."""
    x = torch.randn(shape, generator=g)
    n, depth = c.hc_mult, c.num_hidden_layers
    if name.endswith("_fn"):
        return x * .2 / math.sqrt(shape[1])
    if name.endswith("_scale"):
        return torch.ones(shape)
    if name.endswith("_base"):
        base = torch.cat((torch.full((n,), -math.log(n - 1.0) if n > 1 else 4.0), torch.zeros(n),
                          (4 * torch.eye(n)).flatten()))
        return base + .1 * x
    if name.endswith((".bias", ".bias_vl", "attn_sink")):
        return torch.zeros(shape)
    if len(shape) == 1 or name.endswith(("q_weight", "k_weight")):
        return torch.ones(shape)
    if name == "embed" or name.endswith("markov_head.embed"):
        return x
    if name.endswith("engram.embed"):
        return .02 * x
    gain = .5 / math.sqrt(depth) if name.endswith(("wo_b", ".w2", "markov_head.head")) else 1.0
    gain = .1 if name == "head" or "confidence" in name else gain
    return gain * x / math.sqrt(shape[-1])


def stack_experts(shape, tensors):
    """Tensors under official names (without ".weight") -> those of the model, routed experts stacked."""
    out = {}
    for name, _, size in shape.tensors():
        stem, part = name.rsplit(".", 1) if ".ffn.experts." in name else (name, None)
        out[name] = torch.stack([tensors[f"{stem}.{e}.{part}"] for e in range(size[0])]) if part else tensors[name]
        assert tuple(out[name].shape) == tuple(size), name
    return out
