#!/usr/bin/env python3
"""Operators of `cedar bench gpu` in torch: the same maths and shapes, with the row names that it prints.

    python3 tests/peers/torch_ops.py [--repeat N] [--ours FILE.csv] [ROW...]

Prints CSV: row, p50, least and p90 in microseconds, repeats, how it is done. With --ours, a file that
`cedar bench gpu --csv` has written on the same machine minutes before, also the ratio torch / ours of the medians:
above 1 we are faster. ROW is the beginning of a name. Needs torch with CUDA; rows that this torch or GPU cannot run
are reported as comments.

Torch has no FP4 experts and no 32 x 32 FP8 tiles: the peers of FP8 layers are bf16 weights (twice the bytes) and, in
rows ending in _fp8, torch._scaled_mm with one scale per tensor; those of FP4 experts are bf16 experts one by one. Each
is a graph of several runs whose weights alternate, over more than the L2 cache holds; inputs are random.
"""
import argparse
import csv
import sys

try:
    import torch
except ImportError:
    sys.exit("torch_ops: this python has no torch")

D, HEADS, DIM, Q_LORA, GROUPS, O_LORA = 5120, 64, 512, 1280, 8, 1024
EXPERTS, PER_TOKEN, MOE = 32, 6, 2304
TOPK, WINDOW, INDEX_HEADS, INDEX_DIM, STREAMS, VOCAB = 512, 128, 32, 128, 4, 129280
CACHE_BYTES = 200 << 20


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def copies_of(elements, size=2):
    return max(2, min(32, CACHE_BYTES // (elements * size) + 1))


def measure(run, rounds, repeat):
    """Microseconds of run(i), as a graph of `rounds` of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(max(3, min(20, rounds))):
            run(i % rounds)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(rounds):
            run(i)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for i in range(repeat + 3):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(1e3 * begin.elapsed_time(end) / rounds)
    return sorted(times)


def linear(n, out, k):
    weights = [bf16(out, k) for _ in range(copies_of(out * k))]
    x, y = bf16(n, k), torch.empty(n, out, device="cuda", dtype=torch.bfloat16)
    rounds = max(4, len(weights)) if n > 32 else 32
    return lambda i: torch.mm(x, weights[i % len(weights)].t(), out=y), rounds, "bf16 torch.mm"


def linear_fp8(n, out, k):
    count = copies_of(out * k, 1)
    weights = [bf16(out, k).clamp(-4, 4).to(torch.float8_e4m3fn) for _ in range(count)]
    rows = max(n, 16)       # _scaled_mm asks for a multiple of 16 rows
    x, one = bf16(rows, k).clamp(-4, 4).to(torch.float8_e4m3fn), torch.ones((), device="cuda")

    def run(i):
        torch._scaled_mm(x, weights[i % count].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return run, 32 if n <= 32 else 4, "torch._scaled_mm, one scale a tensor, %d rows" % rows


def grouped(n, out, k):
    weights = [bf16(GROUPS, k, out // GROUPS) for _ in range(copies_of(out * k))]
    x = bf16(GROUPS, n, k)
    return lambda i: torch.bmm(x, weights[i % len(weights)]), 32 if n <= 32 else 4, "bf16 torch.bmm"


class Experts:
    """bf16 experts of one layer: 2.3 GB, made once."""
    weights = None

    @classmethod
    def get(cls):
        if cls.weights is None:
            cls.weights = (bf16(EXPERTS, D, 2 * MOE), bf16(EXPERTS, MOE, D))
        return cls.weights


def swiglu(h):
    gate, up = h[..., :MOE].float(), h[..., MOE:].float()
    return (torch.nn.functional.silu(gate.clamp(max=10)) * up.clamp(-10, 10)).to(torch.bfloat16)


def experts(n):
    """Pairs sorted by expert ahead of time (not counted): only the products and the activation."""
    up, down = Experts.get()
    rounds = 8 if n <= 32 else 2
    plans = []
    generator = torch.Generator().manual_seed(2)
    for _ in range(rounds):
        chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:PER_TOKEN] for _ in range(n)])
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
        plans.append([(e, c) for e, c in enumerate(counts) if c])
    x = bf16(n * PER_TOKEN, D)

    def run(i):
        at = 0
        for e, count in plans[i]:
            part = x[at:at + count]
            torch.mm(swiglu(torch.mm(part, up[e])), down[e])
            at += count
    return run, rounds, "bf16 torch.mm expert by expert"


def attention(n):
    """Gather of picks and window from bf16 keys, then scaled_dot_product_attention; without the sink."""
    keys = WINDOW + TOPK
    pool = bf16(1 << 17, DIM)
    ids = torch.randint(0, 1 << 17, (8, n, keys), device="cuda")
    q = bf16(n, 1, HEADS, DIM)

    def run(i):
        kv = pool[ids[i % 8].flatten()].view(n, 1, keys, DIM)
        torch.nn.functional.scaled_dot_product_attention(q, kv, kv)
    return run, 16 if n <= 32 else 4, "bf16 gather + scaled_dot_product_attention"


def attention_by_products(n):
    keys = WINDOW + TOPK
    pool = bf16(1 << 17, DIM)
    ids = torch.randint(0, 1 << 17, (8, n, keys), device="cuda")
    q = bf16(n, HEADS, DIM)

    def run(i):
        kv = pool[ids[i % 8].flatten()].view(n, keys, DIM)
        p = torch.softmax(torch.bmm(q, kv.transpose(1, 2)).float() * DIM ** -0.5, -1).to(torch.bfloat16)
        torch.bmm(p, kv)
    return run, 16 if n <= 32 else 4, "bf16 gather, bmm, softmax, bmm"


def scores(n, entries):
    keys = [bf16(entries, INDEX_DIM) for _ in range(2)]
    q, g = bf16(n * INDEX_HEADS, INDEX_DIM), torch.randn(n, INDEX_HEADS, 1, device="cuda")

    def run(i):
        s = torch.mm(q, keys[i % 2].t()).view(n, INDEX_HEADS, entries)
        (torch.relu(s).float() * g).sum(1)
    return run, 8 if n == 1 else 2, "bf16 torch.mm, relu, weighted sum"


def topk(n, entries, kind="random"):
    x = torch.randn(n, entries, device="cuda")
    if kind == "equal":
        x = torch.ones_like(x)
    elif kind == "sorted":
        x = torch.arange(entries, device="cuda", dtype=torch.float32).repeat(n, 1)
    return lambda i: torch.topk(x, TOPK, dim=1, sorted=False), 16, "torch.topk, unsorted"


def pool_blocks(entries):
    x = torch.randn(1, entries, device="cuda")
    return lambda i: torch.topk(x.view(1, -1, 8).amax(2), 2048, dim=1, sorted=False), 16, "amax, torch.topk"


def site_maths(h, y, post, comb, fn, base, gain):
    """Expand, mix with Sinkhorn, collapse, norm: one mHC site, streams in bf16."""
    h = (comb.transpose(1, 2) @ h.float() + post.unsqueeze(2) * y.float().unsqueeze(1)).to(torch.bfloat16)
    flat = h.flatten(1).float()
    mixes = flat @ fn * torch.rsqrt(flat.square().mean(1, keepdim=True) + 1e-6) + base
    pre, m = torch.sigmoid(mixes[:, :STREAMS]), mixes[:, 2 * STREAMS:].view(-1, STREAMS, STREAMS)
    m = torch.softmax(m, 2) + 1e-6
    for _ in range(20):
        m = m / (m.sum(1, keepdim=True) + 1e-6)
        m = m / (m.sum(2, keepdim=True) + 1e-6)
    x = (pre.unsqueeze(2) * h.float()).sum(1)
    return h, m, (x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * gain).to(torch.bfloat16)


def site(n):
    run = torch.compile(site_maths)
    h, y = bf16(n, STREAMS, D), bf16(n, D)
    post = torch.rand(n, STREAMS, device="cuda")
    comb = torch.full((n, STREAMS, STREAMS), 0.25, device="cuda")
    fn = torch.randn(STREAMS * D, (2 + STREAMS) * STREAMS, device="cuda") / 100
    base, gain = torch.zeros((2 + STREAMS) * STREAMS, device="cuda"), torch.ones(D, device="cuda")
    return lambda i: run(h, y, post, comb, fn, base, gain), 4 if n > 1 else 16, "torch.compile, bf16 streams"


def norm_maths(x, gain):
    x = (x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-20) * gain).to(torch.bfloat16).float()
    return quantise_maths(x)


def quantise_maths(x):
    b = x.view(x.shape[0], -1, 32)
    scale = torch.exp2(torch.ceil(torch.log2(b.abs().amax(2, keepdim=True).clamp(min=1e-4) / 448)))
    return ((b / scale).to(torch.float8_e4m3fn).float() * scale).to(torch.bfloat16)


def compiled(maths, *inputs):
    run = torch.compile(maths)
    return lambda i: run(*inputs), 4, "torch.compile"


def copy():
    a, b = (torch.randint(0, 255, (1 << 30,), device="cuda", dtype=torch.uint8) for _ in range(2))
    return lambda i: b.copy_(a), 4, "copy of 1 GiB: %.3g bytes" % (2 << 30)


def square():
    a, b = bf16(8192, 8192), bf16(8192, 8192)
    y = torch.empty_like(a)
    return lambda i: torch.mm(a, b, out=y), 4, "bf16 8192^3: %.4g operations" % (2 * 8192 ** 3)


def square_fp8():
    return linear_fp8(8192, 8192, 8192)


QB, OA, OB = (HEADS * DIM, Q_LORA), (GROUPS * O_LORA, HEADS * DIM // GROUPS), (D, GROUPS * O_LORA)
ROWS = [
    ("limit_copy", copy), ("limit_matrix", square), ("limit_matrix_fp8", square_fp8),
    ("linear_wq_a_1", lambda: linear(1, Q_LORA, D)), ("linear_wq_a_1_fp8", lambda: linear_fp8(1, Q_LORA, D)),
    ("linear_wq_b_1", lambda: linear(1, *QB)), ("linear_wq_b_1_fp8", lambda: linear_fp8(1, *QB)),
    ("linear_wq_b_8", lambda: linear(8, *QB)), ("linear_wq_b_32", lambda: linear(32, *QB)),
    ("linear_wq_b_32_fp8", lambda: linear_fp8(32, *QB)),
    ("linear_wo_a_1", lambda: grouped(1, *OA)),
    ("linear_wo_b_1", lambda: linear(1, *OB)), ("linear_wo_b_1_fp8", lambda: linear_fp8(1, *OB)),
    ("linear_head_1", lambda: linear(1, VOCAB, D)),
    ("linear_wq_b_2048", lambda: linear(2048, *QB)), ("linear_wq_b_2048_fp8", lambda: linear_fp8(2048, *QB)),
    ("linear_wo_a_2048", lambda: grouped(2048, *OA)),
    ("linear_wo_b_2048", lambda: linear(2048, *OB)), ("linear_wo_b_2048_fp8", lambda: linear_fp8(2048, *OB)),
] + [("moe_%s_%d" % ("decode" if n < 2048 else "prefill", n), lambda n=n: experts(n))
     for n in (1, 8, 32, 64, 256, 2048)] + [
    ("sparse_attn_%d" % n, lambda n=n: attention(n)) for n in (1, 16, 64, 128, 512)] + [
    ("sparse_attn_%d_bmm" % n, lambda n=n: attention_by_products(n)) for n in (1, 16, 64, 128, 512)] + [
    ("indexer_logits_128k", lambda: scores(1, 1 << 17)), ("indexer_logits_1m", lambda: scores(1, 1 << 20)),
    ("indexer_rows_64x16k", lambda: scores(64, 1 << 14)),
    ("topk512_1x16k", lambda: topk(1, 1 << 14)), ("topk512_1x128k", lambda: topk(1, 1 << 17)),
    ("topk512_1x128k_equal", lambda: topk(1, 1 << 17, "equal")),
    ("topk512_1x128k_sorted", lambda: topk(1, 1 << 17, "sorted")),
    ("topk512_1x1m", lambda: topk(1, 1 << 20)), ("topk512_64x16k", lambda: topk(64, 1 << 14)),
    ("topk512_64x128k", lambda: topk(64, 1 << 17)), ("pool_1x128k", lambda: pool_blocks(1 << 17)),
    ("mhc_site_2048", lambda: site(2048)), ("mhc_site_1", lambda: site(1)),
    ("norm_2048", lambda: compiled(norm_maths, torch.randn(2048, Q_LORA, device="cuda"),
                                   torch.ones(Q_LORA, device="cuda"))),
    ("pack_2048", lambda: compiled(quantise_maths, torch.randn(2048, GROUPS * O_LORA, device="cuda"))),
]


def read_ours(path):
    """Medians by row name of a file of `cedar bench gpu --csv`."""
    with open(path, encoding="utf-8") as f:
        rows = csv.DictReader(line for line in f if not line.startswith("#"))
        return {r["row"]: float(r["p50_us"]) for r in rows if r.get("p50_us") and float(r["p50_us"]) > 0}


def our_name(name):
    for end in ("_fp8", "_bmm"):
        name = name.removesuffix(end)
    return name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--ours")
    parser.add_argument("row", nargs="*")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_ops: this torch finds no GPU")
    ours = read_ours(args.ours) if args.ours else {}
    print("# torch %s, %s" % (torch.__version__, torch.cuda.get_device_name()))
    print("row,p50_us,least_us,p90_us,repeats,torch_over_ours,how")
    torch.manual_seed(1)
    for name, make in ROWS:
        if args.row and not any(name.startswith(r) for r in args.row):
            continue
        try:
            run, rounds, how = make()
            t = measure(run, rounds, args.repeat)
        except Exception as e:      # a row that this torch cannot run is no reason to lose the others
            print("# %s: %s" % (name, str(e).splitlines()[0] if str(e) else type(e).__name__), flush=True)
            torch.cuda.empty_cache()
            continue
        p50 = t[len(t) // 2]
        mine = None if name.startswith("limit_") else ours.get(our_name(name))
        ratio = "%.3f" % (p50 / mine) if mine else ""
        print("%s,%.3f,%.3f,%.3f,%d,%s,\"%s\"" % (name, p50, t[0], t[len(t) * 9 // 10], len(t), ratio, how), flush=True)
        del run
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
