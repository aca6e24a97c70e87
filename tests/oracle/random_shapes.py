"""Golden directories of random legal shapes around `tiny`: random_shapes.py --out DIR --first 0 --count 24.

Shape k is a pure function of k: DIR/NNN holds every golden case in `wide` precision, DIR/NNN-ref the traces alone with
bf16 rounding (its checkpoint is that of DIR/NNN). Prints one line per shape. Tokens are not searched for quiet ones, so
the vectors suit the exact arithmetic, an fp32 engine that follows its decisions, and the one-block-deep checks.
"""
import argparse
import json
import os

import numpy as np

import checkpoint
import configs
import golden
import v41

# Shapes that chance would rarely draw: keys forced after the draw, by shape number.
EDGES = {
    0: dict(sliding_window=1),
    1: dict(layout=[("kv", 2), ("read", 2), ("kv", 1)], stages=0),                  # first layer compressed, cut last
    2: dict(layout=[("win", 0), ("kv", 4), ("index", 4), ("kv", 1), ("read", 1)]),
    3: dict(hc_mult=2),
    4: dict(layout=[("win", 0), ("kv", 2), ("read", 2), ("index", 2), ("read", 2)]),   # one source, which is the cut
    5: dict(candidate=False),
    6: dict(index_topk=300),                                                        # more than any context
    7: dict(layout=[("kv", 1), ("win", 0), ("read", 1), ("win", 0), ("index", 1)]),    # window-only layers in between
    8: dict(hc_mult=1, hc_sinkhorn_iters=1),
    9: dict(layout=[("kv", 3), ("kv", 3), ("kv", 2), ("index", 2)]),
    10: dict(engram=[]),
    11: dict(candidate_topk_blocks=1, candidate_block_size=8, index_topk=8),        # the newest block alone
    12: dict(index_topk=1, candidate_topk_blocks=1, candidate_block_size=1),
    13: dict(stages=1, block=1),
    14: dict(layout=[("kv", 8), ("read", 8), ("kv", 2), ("read", 2)]),
    15: dict(hc_mult=8, hc_sinkhorn_iters=3),
    16: dict(layout=[("kv", 1), ("read", 1)], stages=1),
    17: dict(swiglu_limit=0.05),
    18: dict(vocab_size=97),
    19: dict(layout=[("win", 0), ("win", 0), ("win", 0), ("kv", 1), ("index", 1), ("index", 1), ("index", 1)]),
    20: dict(layout=[("win", 0), ("kv", 1), ("kv", 2), ("kv", 4), ("read", 4)]),       # ratios that grow
    21: dict(n_routed_experts=1, num_experts_per_tok=1, sliding_window=2),
    22: dict(engram_max_ngram_size=8, engram_n_heads=2),
    23: dict(head_dim=160, index_head_dim=96, qk_rope_head_dim=2),
}


def random_layout(pick):
    """List of (role, ratio) by layer; role: win, kv (and index) source, index source, read."""
    out = [("win", 0)] * pick(0, 0, 1, 1, 2)
    ratios = sorted([pick(1, 1, 2, 2, 4) for _ in range(pick(1, 2, 3))], reverse=True)
    for r in ratios:
        out += [("kv", r)] + [(pick("index", "read", "read", "win"), r) for _ in range(pick(0, 1, 2))]
    out += [(pick("index", "read"), ratios[-1])] * pick(1, 2)
    return [(role, 0 if role == "win" else r) for role, r in out]


def shape(k):
    """config.json object of shape k."""
    rng = np.random.default_rng([k, 4711])
    pick = lambda *options: options[rng.integers(len(options))]
    force = dict(EDGES.get(k, {}))
    layout = random_layout(pick)
    layout = force.pop("layout", layout)
    n = len(layout)
    of = lambda *roles: [i for i, (role, _) in enumerate(layout) if role in roles]
    cut = of("kv")[-1]
    stages = force.pop("stages", pick(0, 1, 2, 3))
    if cut == n - 1:
        stages = 0
    ratio_max = max(r for _, r in layout)
    window = pick(*[w for w in (2, 3, 5, 8, 16, 24, 33) if w > ratio_max])
    groups, per_group = pick(1, 2, 3), pick(1, 2)
    behind = list(range(cut + 1, n))
    targets = sorted(rng.permutation(behind)[:rng.integers(1, len(behind) + 1)].tolist()) if stages else []
    engram = sorted(rng.permutation(cut + 1)[:rng.integers(0, 3)].tolist())
    engram = force.pop("engram", engram)
    vocab = pick(200, 320, 512)
    if "vocab_size" in force:
        vocab = force["vocab_size"]
    topk, block = pick(2, 5, 8, 12), pick(1, 2, 3, 4)
    experts, draft_experts = pick(4, 7, 12), pick(2, 5)
    head_dim, index_dim = pick(32, 64, 96), pick(32, 64)
    keys = dict(
        vocab_size=vocab, hidden_size=pick(64, 96, 160), num_hidden_layers=n, num_attention_heads=groups * per_group,
        head_dim=head_dim, qk_rope_head_dim=pick(8, 16, 32), q_lora_rank=pick(32, 64), o_groups=groups, o_lora_rank=pick(32, 64),
        sliding_window=window, compress_ratios=[r for _, r in layout] + [0] * stages, kv_source_layer_ids=of("kv"),
        index_source_layer_ids=of("kv", "index"), candidate_source_layer_id=cut if force.pop("candidate", rng.random() < .8) else -1,
        candidate_topk_blocks=-(-topk // block) + pick(0, 1, 3), candidate_block_size=block, index_n_heads=pick(1, 3, 4),
        index_head_dim=index_dim, index_topk=topk, rope_theta=pick(5000, 10000), compress_rope_theta=pick(40000, 160000),
        rope_scaling={"rope_type": "yarn", "factor": pick(1, 4, 16), "beta_fast": pick(16, 32), "beta_slow": 1,
                      "original_max_position_embeddings": pick(32, 64, 4096)},
        max_position_embeddings=4096, n_routed_experts=experts, num_experts_per_tok=pick(1, 2, 3), moe_intermediate_size=pick(32, 64),
        routed_scaling_factor=pick(1.0, 1.5, 2.5), swiglu_limit=pick(0.5, 10.0), hc_mult=pick(2, 3, 4), hc_sinkhorn_iters=pick(2, 9, 20),
        hc_eps=pick(1e-6, 1e-4), engram_layer_ids=engram, engram_max_ngram_size=pick(2, 3, 4), engram_n_heads=pick(1, 2, 3),
        engram_head_dim=pick(32, 64), engram_vocab_size=pick(53, 101, 251), engram_pad_token_id=pick(2, 5),
        engram_compressed_vocab_size=vocab * pick(1, 3) // 4, num_nextn_predict_layers=stages, dspark_block_size=pick(1, 3, 5),
        dspark_noise_token_id=vocab - 1, dspark_target_layer_ids=targets, dspark_markov_rank=pick(16, 40),
        dspark_n_routed_experts=draft_experts, dspark_num_experts_per_tok=pick(1, 2))
    if "block" in force:
        keys["dspark_block_size"] = force.pop("block")
    keys.update(force)
    keys["candidate_topk_blocks"] = max(keys["candidate_topk_blocks"], -(-keys["index_topk"] // keys["candidate_block_size"]))
    js = configs.published()
    js["text_config"].update(keys)
    js["image_token_id"] = vocab - 2
    return js


def describe(js):
    """The shape in one line."""
    t = js["text_config"]
    n = t["num_hidden_layers"]
    layers = "".join(("K" if i in t["kv_source_layer_ids"] else "I" if i in t["index_source_layer_ids"] else "r" if r else "w")
                     + (str(r) if r else "") for i, r in enumerate(t["compress_ratios"][:n]))
    return (f"{layers} W{t['sliding_window']} D{t['hidden_size']} n{t['hc_mult']} H{t['num_attention_heads']}x{t['head_dim']} "
            f"g{t['o_groups']} rope{t['qk_rope_head_dim']} idx{t['index_n_heads']}x{t['index_head_dim']} top{t['index_topk']} "
            + (f"pool{t['candidate_topk_blocks']}x{t['candidate_block_size']} " if t["candidate_source_layer_id"] >= 0 else "no-pool ")
            + f"E{t['n_routed_experts']}/{t['num_experts_per_tok']} lim{t['swiglu_limit']} engram{t['engram_layer_ids']}"
            f"x{t['engram_max_ngram_size']}g draft{t['num_nextn_predict_layers']}x{t['dspark_block_size']}")


class NoDrafter(v41.Model):
    """A model without draft stages: its draft cases are left out."""

    def draft(self, st, token, forced=None):
        """Nothing."""
        return None, None, None


def write_golden(out, m, tok, only_traces):
    """golden.safetensors and manifest.json of model m, without noise figures."""
    tensors, cases, exact = {"tokens": ("I32", tok.astype(np.int32))}, [], None
    for case in golden.run_cases(m, tok):
        x, i = case["logits"], case["id"]
        if x is None:
            continue
        entry = {k: case[k] for k in ("id", "n", "hit", "suffix", "start", "tail", "variant", "chunk", "decode", "token")
                 if case.get(k) is not None}
        rows = entry["positions"] = [case["first"], case["first"] + len(x)]
        if i == "exact":
            exact = x
        same = case.get("same") and m.precision == "wide"
        if same and not np.abs(x - exact[rows[0]:rows[1]]).max() < 1e-8:
            raise AssertionError(f"oracle: {i} differs from the exact run")
        if same and i != "exact":
            entry["logits"] = {"tensor": "exact.logits", "rows": rows}
        else:
            tensors[f"{i}.logits"] = "F32", np.asarray(x, np.float32)
            entry["logits"] = {"tensor": f"{i}.logits", "rows": [0, len(x)]}
        if i[0] == "F":
            tensors[f"{i}.ids"] = "I32", case["ids"].astype(np.int32)
            tensors[f"{i}.confidence"] = "F32", np.asarray(case["confidence"], np.float32)
        if i.startswith("D.") and i.endswith(".s16") and not case.get("same"):
            for s, g in case["state"].glob.items():
                lo, hi = case["hit"] // m.c.compress_ratios[s], (case["hit"] + 16) // m.c.compress_ratios[s]
                tensors[f"{i}.L{s}.kv_bytes"] = "U8", g.record()[lo:hi]
                tensors[f"{i}.L{s}.index_bytes"] = "U8", case["state"].index[s].record()[lo:hi]
        cases.append(entry)
        if only_traces:
            break
    tensors.update(golden.trace_tensors(m, tok))
    checkpoint.write_safetensors(os.path.join(out, "golden.safetensors"), tensors)
    with open(os.path.join(out, "manifest.json"), "w") as f:
        json.dump({"precision": m.precision, "cases": cases}, f)


def write_shape(k, out):
    """Directories out/NNN and out/NNN-ref. Returns the shape's config.json object."""
    js = shape(k)
    c, weights = checkpoint.make(js, "random", k)
    wide, ref = os.path.join(out, f"{k:03d}"), os.path.join(out, f"{k:03d}-ref")
    checkpoint.save(wide, js, c, weights)
    os.makedirs(ref, exist_ok=True)
    for name in ("config.json", "token_map.bin", "model.safetensors"):
        if not os.path.lexists(os.path.join(ref, name)):
            os.symlink(os.path.join("..", f"{k:03d}", name), os.path.join(ref, name))
    tok = golden.make_tokens(c, 1000 + k, 0)
    kind = v41.Model if c.num_nextn_predict_layers else NoDrafter
    write_golden(wide, kind(c, weights, "wide"), tok, False)
    write_golden(ref, kind(c, weights, "ref"), tok, True)
    return js


def main():
    """Command line."""
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--out", required=True)
    a.add_argument("--first", type=int, default=0)
    a.add_argument("--count", type=int, default=24)
    a = a.parse_args()
    for k in range(a.first, a.first + a.count):
        print(f"{k:03d} {describe(write_shape(k, a.out))}", flush=True)


if __name__ == "__main__":
    main()
