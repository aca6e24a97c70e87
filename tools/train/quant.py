"""Number formats of the model in PyTorch, bit for bit those of engine/quant.c, and their straight-through versions.

A quantiser takes [..., K] and returns (values, scales): what the stored bytes decode to, in the input's type, and the
float32 scale of each block. `codes_fp8` and `codes_fp4` turn both into bytes. tests/train.py compares all of it with
tests/oracle/quant.py.
"""
import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TINY_FP8 = 9.999999747378752e-05        # 1e-4 as float32


def e4m3(x):
    """Nearest E4M3 value, ties to even, saturating at 448."""
    x = x.clamp(-448, 448)
    if x.dtype != torch.float64:
        return x.float().to(torch.float8_e4m3fn).to(x.dtype)
    exponent = (x.abs().contiguous().view(torch.int64) >> 52).clamp(min=1023 - 6)
    step = ((exponent - 3) << 52).view(torch.float64)
    return torch.copysign((x.abs() / step).round() * step, x)


def e2m1(x, s):
    """Nearest s * E2M1 value. Comparing with midpoints times s is exact, a division by s would not be."""
    a = x.abs()
    half = (a > .25 * s).to(x.dtype) + (a >= .75 * s) + (a > 1.25 * s) + (a >= 1.75 * s)
    ones = (a > 2.5 * s).to(x.dtype) + (a >= 3.5 * s) + 2 * (a > 5 * s)
    return torch.copysign((.5 * half + ones) * s, x)


def pow2_scale(amax, inverse_max):
    """2^ceil(log2(amax * inverse_max)) by exponent bits of the float32 product."""
    u = (amax.float() * torch.tensor(inverse_max, dtype=torch.float32)).view(torch.int32)
    return (((u >> 23) + ((u & 0x7FFFFF) != 0).int()) << 23).view(torch.float32)


def reciprocal(s):
    """1 / s of powers of two, exactly: compiled code for a GPU may divide by an approximation."""
    return (0x7F000000 - s.view(torch.int32)).view(torch.float32)


def blocks(x, n):
    """[..., K] -> [..., K/n, n]."""
    return x.unflatten(-1, (-1, n))


def fp8q32(x):
    """FP8Q32: E4M3, one power of two per 32 channels."""
    b = blocks(x, 32)
    s = pow2_scale(b.abs().amax(-1).clamp(min=TINY_FP8), 1 / 448)
    return (e4m3(b * reciprocal(s)[..., None].to(x.dtype)) * s[..., None].to(x.dtype)).flatten(-2), s


def fp4q32(x):
    """FP4Q32: E2M1, one power of two per 32 channels."""
    b = blocks(x, 32)
    s = pow2_scale(b.abs().amax(-1).clamp(min=6 * 2.0 ** -126), 1 / 6)
    return e2m1(b, s[..., None].to(x.dtype)).flatten(-2), s


def fp4q16(x):
    """FP4Q16: E2M1, one E4M3 number per 16 channels."""
    b = blocks(x, 16)
    s = e4m3(b.abs().amax(-1).double().clamp(min=6 * 2.0 ** -9) / 6).float()
    return e2m1(b, s[..., None].to(x.dtype)).flatten(-2), s


def tiles(w):
    """Dense FP8 weight [..., N, K], multiples of 32: E4M3, one power of two per 32 x 32 tile."""
    t = w.unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))
    s = pow2_scale(t.abs().amax((-3, -1)).clamp(min=TINY_FP8), 1 / 448)
    wide = s[..., :, None, :, None].to(w.dtype)
    return (e4m3(t / wide) * wide).flatten(-4, -3).flatten(-2), s


def bf16(x):
    """Rounded to bf16."""
    return x.float().to(torch.bfloat16).to(x.dtype), None


def agrees(device):
    """Whether a device rounds as the CPU does, whose results are tested bit for bit."""
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    x = x * 2.0 ** torch.arange(-20, 12).repeat_interleave(2)[:, None]
    return all(torch.equal(f(x.to(t))[0], f(x.to(t).to(device))[0].cpu()) for f in (fp8q32, fp4q32, fp4q16, tiles)
               for t in (torch.float32, torch.float64))


def codes_fp8(values, scales, block):
    """uint8 E4M3 codes of quantised values; block: (rows, columns) that share a scale."""
    s = scales.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return (values.float() / s).to(torch.float8_e4m3fn).view(torch.uint8)


def codes_fp4(values, scales):
    """Packed E2M1 bytes [..., K/2] of values [..., K] with a scale per 32: the low nibble is the even element."""
    x = values.float() / scales.repeat_interleave(32, -1)
    c = torch.searchsorted(torch.tensor(E2M1), x.abs().contiguous()).to(torch.uint8)
    c = c | (torch.signbit(x) << 3).to(torch.uint8)
    return c[..., 0::2] | c[..., 1::2] << 4


def scale_bytes(scales):
    """UE8M0 bytes of power-of-two scales."""
    return (scales.float().view(torch.int32) >> 23).to(torch.uint8)


class _Straight(torch.autograd.Function):
    """A quantiser whose gradient passes through."""

    @staticmethod
    def forward(_, x, quantise):
        return quantise(x)[0]

    @staticmethod
    def backward(_, grad):
        return grad, None


def straight(x, quantise):
    """Quantised values of x with the gradient of the identity."""
    return _Straight.apply(x, quantise)
