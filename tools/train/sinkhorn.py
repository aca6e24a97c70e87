"""The Sinkhorn rounds of mHC as one kernel, forward and backward: in plain PyTorch they are hundreds of small ones.

A division y = x / (s + eps) by sums s is undone by x = y * (s + eps), so the backward pass needs the result and the
sums alone: dx = (dy - sum(dy * y)) / (s + eps).
"""
import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def plain(x, iters, eps):
    """x [..., n, n] positive: columns, then (rows, columns) iters - 1 times, divided by their sums."""
    x = x / (x.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        x = x / (x.sum(-1, keepdim=True) + eps)
        x = x / (x.sum(-2, keepdim=True) + eps)
    return x


if triton:
    @triton.jit
    def _forward(x, y, sums, rows, eps, ITERS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
        r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        a = tl.arange(0, N)
        at = r[:, None, None] * N * N + a[None, :, None] * N + a[None, None, :]
        there, line = (r < rows)[:, None], r[:, None] * N + a[None, :]
        c = tl.load(x + at, mask=there[:, :, None], other=1.0)
        s = tl.sum(c, axis=1)
        tl.store(sums + line, s, mask=there)
        c = c / (s[:, None, :] + eps)
        for k in range(1, ITERS):
            s = tl.sum(c, axis=2)
            tl.store(sums + (2 * k - 1) * rows * N + line, s, mask=there)
            c = c / (s[:, :, None] + eps)
            s = tl.sum(c, axis=1)
            tl.store(sums + 2 * k * rows * N + line, s, mask=there)
            c = c / (s[:, None, :] + eps)
        tl.store(y + at, c, mask=there[:, :, None])

    @triton.jit
    def _backward(y, sums, dy, dx, rows, eps, ITERS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
        r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        a = tl.arange(0, N)
        at = r[:, None, None] * N * N + a[None, :, None] * N + a[None, None, :]
        there, line = (r < rows)[:, None], r[:, None] * N + a[None, :]
        c = tl.load(y + at, mask=there[:, :, None], other=1.0)
        g = tl.load(dy + at, mask=there[:, :, None], other=0.0)
        for i in range(1, ITERS):
            k = ITERS - i
            s = (tl.load(sums + 2 * k * rows * N + line, mask=there, other=1.0) + eps)[:, None, :]
            g = (g - tl.sum(g * c, axis=1)[:, None, :]) / s
            c = c * s
            s = (tl.load(sums + (2 * k - 1) * rows * N + line, mask=there, other=1.0) + eps)[:, :, None]
            g = (g - tl.sum(g * c, axis=2)[:, :, None]) / s
            c = c * s
        s = (tl.load(sums + line, mask=there, other=1.0) + eps)[:, None, :]
        g = (g - tl.sum(g * c, axis=1)[:, None, :]) / s
        tl.store(dx + at, g, mask=there[:, :, None])


class _Fused(torch.autograd.Function):
    BLOCK = 64

    @staticmethod
    def forward(ctx, x, iters, eps):
        x, n = x.contiguous(), x.shape[-1]
        rows = x.numel() // (n * n)
        y, sums = torch.empty_like(x), x.new_empty(2 * iters - 1, rows, n)
        _forward[(triton.cdiv(rows, _Fused.BLOCK),)](x, y, sums, rows, eps, iters, n, _Fused.BLOCK)
        ctx.save_for_backward(y, sums)
        ctx.numbers = rows, eps, iters, n
        return y

    @staticmethod
    def backward(ctx, dy):
        (y, sums), (rows, eps, iters, n) = ctx.saved_tensors, ctx.numbers
        dx = torch.empty_like(y)
        _backward[(triton.cdiv(rows, _Fused.BLOCK),)](y, sums, dy.contiguous(), dx, rows, eps, iters, n, _Fused.BLOCK)
        return dx, None, None


def fused(x, iters, eps):
    """`plain` in one kernel: float32, n a power of two."""
    return _Fused.apply(x, iters, eps)


def agrees(device):
    """Whether the kernel runs on the device and gives what `plain` gives, gradients too."""
    x = torch.rand(1000, 4, 4, generator=torch.Generator().manual_seed(1)).to(device) + .01
    weigh = torch.rand(1000, 4, 4, generator=torch.Generator().manual_seed(2)).to(device)
    got = []
    for f, t in ((fused, x.clone()), (plain, x.double())):
        t.requires_grad_()
        y = f(t, 20, 1e-6)
        (y * weigh).sum().backward()
        got.append((y.detach().double(), t.grad.double()))
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*got))
