"""Sink attention of a row over its window and the picked entries, and the index scores that entries are picked by: in
plain PyTorch, and as Triton kernels that keep neither gathered entries nor scores in memory.

Shapes: B sequences, T rows, H heads, d channels, W window, C entries, K picks. A kernel's program has 16 / H rows of
all heads, 16 lines in all. It reads the keys that one of its rows may see in tiles: two of the window, one of picked
entries a row, each hidden from the other rows.
"""
import math

import torch
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LINES, NEXT = 16, 16        # rows times heads of a program; window keys behind its first row


# --- in plain PyTorch -------------------------------------------------------------------------------------------------

def window_logits(q, kv, lo, w, real):
    """Logits of the window: q [B, T, H, d], kv [B, T, d], lo [B, T] first readable position or None.

    T is a multiple of W. -> logits [B, T, H, 2W], keys [B, T/W, 2W, d]: a block of W rows sees two blocks of keys.
    """
    b, t, heads, d = q.shape
    padded = F.pad(kv, (0, 0, w, 0))
    keys = torch.cat((padded[:, :t].unflatten(1, (-1, w)), padded[:, w:].unflatten(1, (-1, w))), 2)
    logits = (q.reshape(b, t // w, w * heads, d) @ keys.mT).view(b, t, heads, 2 * w)
    pos = torch.arange(t, device=q.device)[:, None]
    at = (pos // w - 1) * w + torch.arange(2 * w, device=q.device)
    seen = ((at <= pos) & (at > pos - w) & (at >= 0))[None]
    if lo is not None:
        seen = seen & (at[None] >= lo[..., None])
    return logits.to(real).masked_fill(~seen[:, :, None], -math.inf) * d ** -.5, keys


def gather(entries, picks):
    """Picked entries [B, T, K, d]. As an embedding: its backward sums in float32."""
    b, count, d = entries.shape
    return F.embedding(picks.clamp(min=0) + (torch.arange(b, device=picks.device) * count)[:, None, None],
                       entries.reshape(-1, d))


def plain(q, kv, lo, entries, picks, sink, w):
    """[B, T, H, d] of queries q [B, T, H, d], window rows kv [B, T, d], entries [B, C, d], picks [B, T, K], -1 = none.

    lo [B, T]: first window position a row may read, or None. entries and picks may be None. Shares are made in the
    type of `sink` [H].
    """
    local, keys = window_logits(q, kv, lo, w, sink.dtype)
    (b, t, heads, wide), d = local.shape, q.shape[-1]
    parts = [local, sink.view(1, 1, -1, 1).expand(b, t, heads, 1)]
    if entries is not None:
        gathered = gather(entries, picks)
        far = (q @ gathered.mT).to(sink.dtype).masked_fill((picks < 0)[:, :, None], -math.inf)
        parts.append(far * d ** -.5)
    p = torch.softmax(torch.cat(parts, -1), -1).to(q.dtype)
    o = (p[..., :wide].reshape(b, keys.shape[1], -1, wide) @ keys).view(b, t, heads, d)
    return o if entries is None else o + p[..., wide + 1:] @ gathered


def plain_scores(iq, g, keys, visible):
    """Index scores [B, T, C] of iq [B, T, H, d] and g [B, T, H]; a row sees the first visible [T] of keys [B, C, d]."""
    b, t, heads, dim = iq.shape
    raw = (iq.reshape(b, t * heads, dim).to(g.dtype) @ keys.to(g.dtype).mT).view(b, t, heads, -1)
    s = (g[..., None] * raw.relu()).sum(2)
    return s.masked_fill(torch.arange(keys.shape[1], device=s.device) >= visible[..., None], -math.inf)


# --- kernels ----------------------------------------------------------------------------------------------------------

if triton:
    @triton.jit
    def _product(a, b, PRECISE: tl.constexpr):
        return tl.dot(a, b, input_precision="ieee") if PRECISE else tl.dot(a, b)

    @triton.jit
    def _meet(q, keys, seen, top, total, o, scale, PRECISE: tl.constexpr):
        """A tile of keys [N, D] joins the running softmax of the lines."""
        s = tl.where(seen, _product(q, tl.trans(keys), PRECISE) * scale, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        shrink = tl.exp(top - new)
        return (new, total * shrink + tl.sum(p, 1),
                o * shrink[:, None] + _product(p.to(keys.dtype), keys, PRECISE))

    @triton.jit
    def _part(q, do, keys, seen, lse, delta, scale, PRECISE: tl.constexpr):
        """Gradients by a tile of keys: of the queries, and of the keys."""
        s = _product(q, tl.trans(keys), PRECISE) * scale
        p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)
        ds = (p * (_product(do, tl.trans(keys), PRECISE) - delta[:, None]) * scale).to(keys.dtype)
        return (_product(ds, keys, PRECISE),
                _product(tl.trans(ds), q, PRECISE) + _product(tl.trans(p.to(keys.dtype)), do, PRECISE))

    @triton.jit
    def _forward(q, kv, entries, picks, lo, sink, o, lse, T, C, scale, HAS_LO: tl.constexpr, FAR: tl.constexpr,
                 H: tl.constexpr, D: tl.constexpr, W: tl.constexpr, K: tl.constexpr, PRECISE: tl.constexpr,
                 LINES: tl.constexpr, NEXT: tl.constexpr):
        b, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * (LINES // H)
        line, d = tl.arange(0, LINES), tl.arange(0, D)
        row = first + line // H
        at = (b * T * H + first * H + line)[:, None] * D + d[None, :]
        query = tl.load(q + at)
        low = tl.maximum(row - W + 1, 0)
        if HAS_LO:
            low = tl.maximum(low, tl.load(lo + b * T + row))
        top = tl.load(sink + line % H).to(tl.float32)
        total, out = tl.full((LINES,), 1.0, tl.float32), tl.zeros((LINES, D), tl.float32)
        pos = first - W + 1 + tl.arange(0, W)
        keys = tl.load(kv + (b * T + pos)[:, None] * D + d[None, :], mask=(pos >= 0)[:, None], other=0.0)
        seen = (pos[None, :] >= low[:, None]) & (pos[None, :] <= row[:, None])
        top, total, out = _meet(query, keys, seen, top, total, out, scale, PRECISE)
        pos = first + 1 + tl.arange(0, NEXT)
        keys = tl.load(kv + (b * T + pos)[:, None] * D + d[None, :], mask=(pos < T)[:, None], other=0.0)
        seen = (pos[None, :] >= low[:, None]) & (pos[None, :] <= row[:, None])
        top, total, out = _meet(query, keys, seen, top, total, out, scale, PRECISE)
        if FAR:
            for r in range(LINES // H):
                pick = tl.load(picks + (b * T + first + r) * K + tl.arange(0, K))
                there = (b * C + pick)[:, None] * D + d[None, :]
                entry = tl.load(entries + there, mask=(pick >= 0)[:, None], other=0.0)
                shown = (pick >= 0)[None, :] & (line // H == r)[:, None]
                top, total, out = _meet(query, entry, shown, top, total, out, scale, PRECISE)
        tl.store(o + at, (out / total[:, None]).to(query.dtype))
        tl.store(lse + b * T * H + first * H + line, top + tl.log(total))

    @triton.jit
    def _backward(q, kv, entries, picks, lo, o, lse, do, dq, dkv, dentries, deltas, T, C, scale, HAS_LO: tl.constexpr,
                  FAR: tl.constexpr, H: tl.constexpr, D: tl.constexpr, W: tl.constexpr, K: tl.constexpr,
                  PRECISE: tl.constexpr, LINES: tl.constexpr, NEXT: tl.constexpr):
        b, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * (LINES // H)
        line, d = tl.arange(0, LINES), tl.arange(0, D)
        row = first + line // H
        here = b * T * H + first * H + line
        at = here[:, None] * D + d[None, :]
        query, grad = tl.load(q + at), tl.load(do + at)
        delta = tl.sum(grad.to(tl.float32) * tl.load(o + at).to(tl.float32), 1)
        tl.store(deltas + here, delta)
        whole = tl.load(lse + here)
        low = tl.maximum(row - W + 1, 0)
        if HAS_LO:
            low = tl.maximum(low, tl.load(lo + b * T + row))
        dquery = tl.zeros((LINES, D), tl.float32)
        for half in range(2):
            near = first - W + 1 + half * (W // 2) + tl.arange(0, W // 2)
            where = (b * T + near)[:, None] * D + d[None, :]
            keys = tl.load(kv + where, mask=(near >= 0)[:, None], other=0.0)
            seen = (near[None, :] >= low[:, None]) & (near[None, :] <= row[:, None])
            some, dkeys = _part(query, grad, keys, seen, whole, delta, scale, PRECISE)
            dquery += some
            tl.atomic_add(dkv + where, dkeys, mask=(near >= 0)[:, None], sem="relaxed")
        pos = first + 1 + tl.arange(0, NEXT)
        place = (b * T + pos)[:, None] * D + d[None, :]
        after = tl.load(kv + place, mask=(pos < T)[:, None], other=0.0)
        open_to = (pos[None, :] >= low[:, None]) & (pos[None, :] <= row[:, None])
        part, dafter = _part(query, grad, after, open_to, whole, delta, scale, PRECISE)
        dquery += part
        tl.atomic_add(dkv + place, dafter, mask=(pos < first + LINES // H)[:, None], sem="relaxed")
        if FAR:
            for r in range(LINES // H):
                pick = tl.load(picks + (b * T + first + r) * K + tl.arange(0, K))
                there = (b * C + pick)[:, None] * D + d[None, :]
                entry = tl.load(entries + there, mask=(pick >= 0)[:, None], other=0.0)
                shown = (pick >= 0)[None, :] & (line // H == r)[:, None]
                more, dentry = _part(query, grad, entry, shown, whole, delta, scale, PRECISE)
                dquery += more
                tl.atomic_add(dentries + there, dentry, mask=(pick >= 0)[:, None], sem="relaxed")
        tl.store(dq + at, dquery.to(query.dtype))

    @triton.jit
    def _scores(iq, g, keys, visible, out, T, C, H: tl.constexpr, D: tl.constexpr, PRECISE: tl.constexpr,
                ROWS: tl.constexpr, COLUMNS: tl.constexpr):
        b = tl.program_id(2).to(tl.int64)
        row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        d = tl.arange(0, D)
        sees = tl.load(visible + row, mask=row < T, other=0)
        entry = tl.load(keys + (b * C + column)[:, None] * D + d[None, :], mask=(column < C)[:, None], other=0.0)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for h in range(H):
            line = (b * T + row) * H + h
            query = tl.load(iq + line[:, None] * D + d[None, :], mask=(row < T)[:, None], other=0.0)
            share = tl.load(g + line, mask=row < T, other=0.0)
            total += share[:, None] * tl.maximum(_product(query, tl.trans(entry), PRECISE), 0.0)
        total = tl.where(column[None, :] < sees[:, None], total, float("-inf"))
        tl.store(out + (b * T + row)[:, None] * C + column[None, :], total,
                 mask=(row < T)[:, None] & (column < C)[None, :])


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, lo, entries, picks, sink, w):
        (b, t, heads, d), far = q.shape, entries is not None
        q, kv = q.contiguous(), kv.contiguous()
        o, lse = torch.empty_like(q), q.new_empty(b, t, heads, dtype=torch.float32)
        ctx.fixed = (t, entries.shape[1] if far else 0, d ** -.5, lo is not None, far, heads, d, w,
                     picks.shape[-1] if far else 16, q.dtype == torch.float32, LINES, NEXT)
        ctx.grid = (t * heads // LINES, b)
        lo = q if lo is None else lo.contiguous()
        entries, picks = (entries.contiguous(), picks.contiguous()) if far else (q, q)
        _forward[ctx.grid](q, kv, entries, picks, lo, sink, o, lse, *ctx.fixed)
        ctx.save_for_backward(q, kv, entries, picks, lo, o, lse, sink)
        return o

    @staticmethod
    def backward(ctx, do):
        q, kv, entries, picks, lo, o, lse, sink = ctx.saved_tensors
        far = ctx.fixed[4]
        dq, deltas = torch.empty_like(q), torch.empty_like(lse)
        dkv = torch.zeros_like(kv, dtype=torch.float32)
        dentries = torch.zeros_like(entries, dtype=torch.float32) if far else dkv
        _backward[ctx.grid](q, kv, entries, picks, lo, o, lse, do.contiguous(), dq, dkv, dentries, deltas, *ctx.fixed)
        dsink = -((sink - lse).exp() * deltas).sum((0, 1))
        return dq, dkv.to(kv.dtype), None, dentries.to(entries.dtype) if far else None, None, dsink.to(sink.dtype), None


def fused(q, kv, lo, entries, picks, sink, w):
    """`plain` as kernels: d, W / 2 and K powers of two of 16 or more, H one up to 16."""
    return _Sparse.apply(q, kv, lo, entries, picks, sink, w)


@torch.no_grad()
def fused_scores(iq, g, keys, visible):
    """`plain_scores` as a kernel, without gradients: d a power of two of 16 or more."""
    (b, t, heads, d), c, block = iq.shape, keys.shape[1], 64
    out = torch.empty(b, t, c, dtype=torch.float32, device=iq.device)
    _scores[(triton.cdiv(c, block), triton.cdiv(t, block), b)](
        iq.contiguous(), g.contiguous(), keys.contiguous(), visible.contiguous(), out, t, c, heads, d,
        iq.dtype == torch.float32, block, block)
    return out


# --- whether the kernels work here --------------------------------------------------------------------------------

def sample(device, kind, real, cut, far, b=2, t=64, heads=4, d=32, w=32, c=48, k=16):
    """Arguments of `plain`, rounded to `kind` and given in `real`."""
    g = torch.Generator().manual_seed(3)
    q, kv, entries = (torch.randn(s, generator=g) for s in ((b, t, heads, d), (b, t, d), (b, c, d)))
    order = torch.rand(b, t, c, generator=g).argsort(-1)[..., :k]
    picks = torch.where(order < (torch.arange(t) * c // t)[:, None], order, -1).to(device)
    lo = (torch.arange(t) // 24 * 24).expand(b, t).to(device) if cut else None
    leaf = lambda x: x.to(kind).to(device, real).requires_grad_()
    return (leaf(q), leaf(kv), lo, *((leaf(entries), picks) if far else (None, None)),
            torch.randn(heads, generator=g).to(device).requires_grad_(), w)


def close(a, b, limit):
    return float((a.double() - b.double()).norm() / b.double().norm()) <= limit


def agrees(device, kind, limit, **shape):
    """Whether the kernels in `kind` give what plain PyTorch gives in float32, gradients too, within a part `limit`.

    shape: of `sample`.
    """
    good = True
    for cut, far in ((False, False), (True, True), (False, True)):
        got = []
        for f, real in ((fused, kind), (plain, torch.float32)):
            args = sample(device, kind, real, cut, far, **shape)
            o = f(*args)
            (o.float() * torch.randn(o.shape, generator=torch.Generator().manual_seed(4)).to(device)).sum().backward()
            got.append([o.detach()] + [a.grad for a in args if isinstance(a, torch.Tensor) and a.requires_grad])
        good &= all(close(a, b, limit) for a, b in zip(*got))
    q, _, _, entries, _, _, _ = sample(device, kind, kind, False, True, t=100, c=90)
    args = q.detach(), torch.randn(2, 100, 4, generator=torch.Generator().manual_seed(5)).to(device), entries.detach()
    visible = (torch.arange(100, device=device) + 1) // 2
    a, b = (f(*args, visible).nan_to_num(neginf=-9) for f in (fused_scores, plain_scores))
    return good and close(a, b, limit)
