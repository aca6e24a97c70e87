#!/usr/bin/env python3
"""Writes the corpus of broken input files in config/, safetensors/ and checkpoint/, next to this script.

Each folder gets expected.txt: one line per case, "name<TAB>part of the expected message" ("ok" for the sound ones).
The files are kept in the repository; run this again only to change the corpus. Standard library only.
"""
import copy
import json
import os
import shutil
import struct

HERE = os.path.dirname(os.path.abspath(__file__))

SMALL = {
    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                            "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
    "text_config": {
        "model_type": "deepseek_v41_text", "vocab_size": 6, "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 4, "q_lora_rank": 32,
        "o_groups": 1, "o_lora_rank": 32, "attention_bias": False, "sliding_window": 2, "compress_ratios": [0, 2, 2, 0],
        "kv_source_layer_ids": [1], "index_source_layer_ids": [1], "candidate_source_layer_id": -1,
        "candidate_topk_blocks": 2, "candidate_block_size": 2,
        "index_n_heads": 1, "index_head_dim": 32, "index_topk": 2,
        "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 64},
        "max_position_embeddings": 64, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1,
        "moe_intermediate_size": 32, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "hidden_act": "silu", "swiglu_limit": 10.0, "hc_mult": 1, "hc_sinkhorn_iters": 2,
        "hc_eps": 1e-6, "rms_norm_eps": 1e-20, "engram_layer_ids": [0], "engram_num_embeddings": [5],
        "engram_max_ngram_size": 2, "engram_n_heads": 1, "engram_head_dim": 32, "engram_vocab_size": 4,
        "engram_pad_token_id": 2, "engram_compressed_vocab_size": 4, "num_nextn_predict_layers": 1,
        "dspark_block_size": 2, "dspark_noise_token_id": 5, "dspark_target_layer_ids": [2], "dspark_markov_rank": 2,
        "dspark_n_routed_experts": 1, "dspark_num_experts_per_tok": 1, "tie_word_embeddings": False,
    },
}


def text(js):
    return json.dumps(js, separators=(",", ":")) + "\n"


def fresh(name):
    path = os.path.join(HERE, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def write_expected(path, lines):
    with open(os.path.join(path, "expected.txt"), "w") as f:
        f.writelines(f"{name}\t{message}\n" for name, message in lines)


# --- config.json ---------------------------------------------------------------------------------------------------

GONE = object()

CONFIG = [      # name, changed keys of text_config, expected message
    ("good", {}, "ok"),
    ("good-no-drafter", {"num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 2], "dspark_block_size": GONE,
                         "dspark_target_layer_ids": GONE}, "ok"),
    ("good-pad-spelling", {"engram_pad_token_id": GONE, "engram_pad_id": 3}, "ok"),
    ("good-no-engram", {"engram_layer_ids": [], "engram_num_embeddings": []}, "ok"),
    ("good-gate-temp", {"gate_temp": 1.0}, "ok"),
    ("vocab-missing", {"vocab_size": GONE}, 'text_config: "vocab_size" is missing'),
    ("vocab-zero", {"vocab_size": 0}, '"vocab_size" is 0, allowed are 1 to 4194304'),
    ("vocab-huge", {"vocab_size": 2 ** 62}, '"vocab_size" is 4611686018427387904, allowed are 1 to 4194304'),
    ("vocab-real", {"vocab_size": 6.0}, '"vocab_size" must be an integer'),
    ("hidden-31", {"hidden_size": 31}, '"hidden_size" is 31, allowed are 32 to 65536'),
    ("hidden-48", {"hidden_size": 48}, '"hidden_size" is 48, it must be a multiple of 32'),
    ("head-dim-40", {"head_dim": 40}, '"head_dim" is 40, it must be a multiple of 32'),
    ("q-lora-33", {"q_lora_rank": 33}, '"q_lora_rank" is 33, it must be a multiple of 32'),
    ("moe-40", {"moe_intermediate_size": 40}, '"moe_intermediate_size" is 40, it must be a multiple of 32'),
    ("index-dim-48", {"index_head_dim": 48}, '"index_head_dim" is 48, it must be a multiple of 32'),
    ("engram-dim-16", {"engram_head_dim": 16}, '"engram_head_dim" is 16, allowed are 32 to 4096'),
    ("o-lora-20", {"o_lora_rank": 20}, '"o_groups" 1 times "o_lora_rank" 20 must be a multiple of 32'),
    ("groups-3", {"o_groups": 3}, '"num_attention_heads" is 2, it must be divisible by "o_groups" 3'),
    ("rope-odd", {"qk_rope_head_dim": 5}, '"qk_rope_head_dim" is 5, it must be a multiple of 2'),
    ("rope-wide", {"qk_rope_head_dim": 34}, '"qk_rope_head_dim" is 34, it may exceed neither "head_dim" 32 nor'),
    ("layers-129", {"num_hidden_layers": 129}, '"num_hidden_layers" is 129, allowed are 1 to 128'),
    ("layers-and-stages", {"num_hidden_layers": 128},
     '"num_hidden_layers" 128 and "num_nextn_predict_layers" 1 together exceed 128'),
    ("ratios-short", {"compress_ratios": [0, 2, 2]},
     '"compress_ratios" has 3 entries, it needs one for each of 3 layers and 1 draft layers'),
    ("ratio-9", {"compress_ratios": [0, 9, 9, 0]}, '"compress_ratios" is 9, allowed are 0 to 8'),
    ("ratio-negative", {"compress_ratios": [0, -1, 2, 0]}, '"compress_ratios" is -1, allowed are 0 to 8'),
    ("ratio-text", {"compress_ratios": [0, "2", 2, 0]}, '"compress_ratios" must be an integer'),
    ("ratio-draft", {"compress_ratios": [0, 2, 2, 2]},
     '"compress_ratios"[3] is 2, but a draft layer only has a window (0)'),
    ("ratio-mixed", {"compress_ratios": [0, 2, 1, 0]},
     '"compress_ratios"[2] is 1, but the layer reads the KV of layer 1, which has ratio 2'),
    ("first-not-source", {"kv_source_layer_ids": [2], "index_source_layer_ids": [2]},
     'layer 1 is the first with a compress ratio above 0, so it must be in "kv_source_layer_ids"'),
    ("no-sources", {"kv_source_layer_ids": []}, '"kv_source_layer_ids" is empty'),
    ("source-descends", {"kv_source_layer_ids": [2, 1], "index_source_layer_ids": [1, 2]},
     '"kv_source_layer_ids" must ascend, but 1 follows 2'),
    ("source-twice", {"kv_source_layer_ids": [1, 1]}, '"kv_source_layer_ids" must ascend, but 1 follows 1'),
    ("source-beyond", {"kv_source_layer_ids": [1, 3]}, '"kv_source_layer_ids" is 3, allowed are 0 to 2'),
    ("source-not-index", {"kv_source_layer_ids": [1, 2]},
     'layer 2 is in "kv_source_layer_ids", so it must be in "index_source_layer_ids" too'),
    ("source-ratio-0", {"index_source_layer_ids": [0, 1]}, 'layer 0 is a source, but its "compress_ratios" entry is 0'),
    ("candidate-not-last", {"candidate_source_layer_id": 2},
     '"candidate_source_layer_id" is 2, it must be the last KV source, layer 1'),
    ("candidate-small", {"candidate_source_layer_id": 1, "index_topk": 5},
     '"candidate_topk_blocks" 2 times "candidate_block_size" 2 must reach "index_topk" 5'),
    ("engram-behind-cut", {"engram_layer_ids": [2]},
     '"engram_layer_ids" names layer 2, but Engram layers must not lie behind the last KV source, layer 1'),
    ("engram-rows", {"engram_num_embeddings": [7]},
     '"engram_num_embeddings"[0] is 7, but the 1 primes of layer 0 from "engram_vocab_size" on sum to 5'),
    ("engram-rows-count", {"engram_num_embeddings": [5, 5]},
     '"engram_num_embeddings" has 2 entries, it needs one for each of 1 Engram layers'),
    ("engram-rows-many", {"engram_max_ngram_size": 8, "engram_n_heads": 10},
     '"engram_max_ngram_size" 8 and "engram_n_heads" 10 make 70 rows per token, at most 64 are supported'),
    ("engram-vocab", {"engram_compressed_vocab_size": 7},
     '"engram_compressed_vocab_size" is 7, it may not exceed "vocab_size" 6'),
    ("engram-pad", {"engram_pad_token_id": 6}, '"engram_pad_token_id" is 6, allowed are 0 to 5'),
    ("multipliers-even", {"engram_multipliers": [[3, 4]]},
     '"engram_multipliers"[0][1] must be an odd integer from 1 to'),
    ("multipliers-short", {"engram_multipliers": [[3]]}, '"engram_multipliers"[0] must be an array of 2 integers'),
    ("multipliers-rows", {"engram_multipliers": [[3, 5], [7, 9]]}, '"engram_multipliers" must be an array of 1 rows'),
    ("multipliers-wide", {"engram_multipliers": [[3, 2305843009213693953]]},
     '"engram_multipliers"[0][1] must be an odd integer from 1 to 2305843009213693951'),
    ("targets-none", {"dspark_target_layer_ids": []}, '"dspark_target_layer_ids" is empty'),
    ("targets-early", {"dspark_target_layer_ids": [1]},
     '"dspark_target_layer_ids" names layer 1, but the drafter may only read layers behind the last KV source, '
     'layer 1'),
    ("noise", {"dspark_noise_token_id": 6}, '"dspark_noise_token_id" is 6, but "vocab_size" is 6'),
    ("draft-experts", {"dspark_num_experts_per_tok": 2},
     '"dspark_num_experts_per_tok" is 2, but "dspark_n_routed_experts" is 1'),
    ("experts", {"num_experts_per_tok": 3}, '"num_experts_per_tok" is 3, but "n_routed_experts" is 2'),
    ("shared-2", {"n_shared_experts": 2}, '"n_shared_experts" is 2, allowed are 1 to 1'),
    ("kv-heads", {"num_key_value_heads": 2}, '"num_key_value_heads" is 2, allowed are 1 to 1'),
    ("scoring", {"scoring_func": "softmax"}, '"scoring_func" is "softmax", only "sqrtsoftplus" is supported'),
    ("act", {"hidden_act": "gelu"}, '"hidden_act" is "gelu", only "silu" is supported'),
    ("topk-method", {"topk_method": "greedy"}, '"topk_method" is "greedy", only "noaux_tc" is supported'),
    ("norm-topk", {"norm_topk_prob": False}, '"norm_topk_prob" is false, only true is supported'),
    ("bias", {"attention_bias": True}, '"attention_bias" is true, only false is supported'),
    ("tied", {"tie_word_embeddings": True}, '"tie_word_embeddings" is true, only false is supported'),
    ("gate-temp", {"gate_temp": 2.0}, '"gate_temp" is 2, allowed are 1 to 1'),
    ("groups-of-experts", {"n_group": 4}, '"n_group" is 4, allowed are 1 to 1'),
    ("hc-9", {"hc_mult": 9}, '"hc_mult" is 9, allowed are 1 to 8'),
    ("theta", {"rope_theta": 0}, '"rope_theta" is 0, allowed are 1 to 1e+12'),
    ("eps-negative", {"rms_norm_eps": -1e-6}, '"rms_norm_eps" is -1e-06, allowed are 0 to 0.1'),
    ("limit-text", {"swiglu_limit": "10"}, '"swiglu_limit" must be a number'),
    ("yarn-none", {"rope_scaling": None}, '"rope_scaling" must be an object'),
    ("yarn-type", {"rope_scaling": {**SMALL["text_config"]["rope_scaling"], "rope_type": "linear"}},
     'rope_scaling: "rope_type" is "linear", only "yarn" is supported'),
    ("yarn-original", {"rope_scaling": {**SMALL["text_config"]["rope_scaling"], "original_max_position_embeddings": 0}},
     'rope_scaling: "original_max_position_embeddings" is 0'),
]

QUANTIZATION = [
    ("quant-method", {"quant_method": "awq"}, 'quantization_config: "quant_method" is "awq", only "fp8" is supported'),
    ("quant-block", {"weight_block_size": [128, 128]}, '"weight_block_size" is not [32, 32]'),
    ("quant-block-1", {"weight_block_size": [32]}, '"weight_block_size" is not [32, 32]'),
    ("quant-scale", {"scale_fmt": "float"}, '"scale_fmt" is "float", only "ue8m0" is supported'),
    ("quant-experts", {"expert_dtype": "fp8"}, '"expert_dtype" is "fp8", only "fp4" is supported'),
]

RAW = [
    ("empty", "", "not valid JSON"),
    ("truncated", text(SMALL)[:700], ":1: not valid JSON"),
    ("array", "[]\n", '"text_config" is missing'),
    ("flat", text(SMALL["text_config"]), '"text_config" is missing'),
    ("text-config-list", '{"text_config":[]}\n', '"text_config" must be an object'),
    ("twice", text(SMALL).replace('"head_dim":32', '"head_dim":32,"head_dim":32'),
     "not valid JSON: duplicate object key"),
    ("trailing", text(SMALL) + "x", ":2: not valid JSON"),
    ("not-utf8", b'{"text_config":"\xff"}', "not valid JSON"),
]


def make_configs():
    path = fresh("config")
    lines = []

    def put(name, data, message):
        with open(os.path.join(path, name + ".json"), "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        lines.append((name, message))

    for name, keys, message in CONFIG:
        js = copy.deepcopy(SMALL)
        js["text_config"].update(keys)
        js["text_config"] = {k: v for k, v in js["text_config"].items() if v is not GONE}
        put(name, text(js), message)
    for name, keys, message in QUANTIZATION:
        js = copy.deepcopy(SMALL)
        js["quantization_config"].update(keys)
        put(name, text(js), message)
    for name, data, message in RAW:
        put(name, data, message)
    write_expected(path, lines)


# --- safetensors ---------------------------------------------------------------------------------------------------

def packed(header, data, length=None):
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def t(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


A, B = t("F32", [2], 0, 8), t("BF16", [2, 2], 8, 16)
D16 = bytes(range(16))

SAFETENSORS = [
    ("good", packed({"a": A, "b": B}, D16), "ok"),
    ("good-metadata", packed({"__metadata__": {"format": "pt"}, "b": B, "a": A}, D16), "ok"),
    ("good-empty", packed({}, b""), "ok"),
    ("good-padded", packed(json.dumps({"a": A, "b": B}) + "    ", D16), "ok"),
    ("good-scalar", packed({"s": t("I64", [], 0, 8), "z": t("U8", [0, 3], 8, 8)}, D16[:8]), "ok"),
    ("none", b"", "0 bytes are too few for a safetensors file"),
    ("short", b"\x02\0\0\0", "4 bytes are too few for a safetensors file"),
    ("length-beyond", packed({"a": A, "b": B}, D16, 4000), "the header claims 4000 bytes, but only"),
    ("length-huge", packed({"a": A, "b": B}, D16, 2 ** 64 - 1),
     "the header claims 18446744073709551615 bytes, at most 100000000"),
    ("length-into-data", packed({"a": A, "b": B}, D16, len(json.dumps({"a": A, "b": B}, separators=(",", ":"))) + 4),
     "not valid JSON"),
    ("length-short", packed({"a": A, "b": B}, D16, 20), "not valid JSON"),
    ("length-zero", packed({"a": A}, D16, 0), "not valid JSON"),
    ("truncated", packed({"a": A, "b": B}, D16[:12]),
     'tensor "b" ends at byte 16 of the data, but the file holds only 12 (truncated?)'),
    ("trailing", packed({"a": A, "b": B}, D16 + b"x"), "1 bytes behind the last tensor belong to no tensor"),
    ("hole", packed({"a": A, "b": t("BF16", [2, 2], 9, 17)}, D16 + b"x"),
     '1 bytes before tensor "b" belong to no tensor'),
    ("hole-first", packed({"b": B}, D16), '8 bytes before tensor "b" belong to no tensor'),
    ("overlap", packed({"a": A, "b": t("BF16", [2, 2], 7, 15)}, D16[:15]), 'tensors "a" and "b" overlap'),
    ("same-place", packed({"a": A, "b": t("F32", [2], 0, 8)}, D16[:8]), 'tensors "a" and "b" overlap'),
    ("size-lie", packed({"a": t("F32", [3], 0, 8), "b": B}, D16),
     'tensor "a" has 8 bytes, but its shape and type need 12'),
    ("dtype-lie", packed({"a": t("F64", [2], 0, 8), "b": B}, D16),
     'tensor "a" has 8 bytes, but its shape and type need 16'),
    ("dtype-unknown", packed({"a": t("F4", [2], 0, 8)}, D16[:8]), 'tensor "a": type "F4" is not known'),
    ("dtype-number", packed({"a": t(32, [2], 0, 8)}, D16[:8]), 'tensor "a": "dtype" must be a string'),
    ("shape-overflow", packed({"a": t("F32", [2 ** 32, 2 ** 32], 0, 0)}, b""),
     'tensor "a": the product of its shape exceeds 64 bits'),
    ("shape-negative", packed({"a": t("F32", [-2], 0, 8)}, D16[:8]),
     'tensor "a": "shape" must hold non-negative integers'),
    ("shape-real", packed({"a": t("F32", [2.0], 0, 8)}, D16[:8]),
     'tensor "a": "shape" must hold non-negative integers'),
    ("shape-none", packed({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, D16[:8]),
     'tensor "a": "shape" must be an array'),
    ("shape-long", packed({"a": t("U8", [1] * 9, 0, 1)}, D16[:1]), 'tensor "a": more than 8 dimensions'),
    ("offsets-none", packed({"a": {"dtype": "F32", "shape": [2]}}, D16[:8]),
     'tensor "a": "data_offsets" must be two integers'),
    ("offsets-three", packed({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, D16[:8]),
     'tensor "a": "data_offsets" must be two integers'),
    ("offsets-descend", packed({"a": t("F32", [2], 8, 0)}, D16[:8]),
     'tensor "a": "data_offsets" must be non-negative and ascend'),
    ("offsets-negative", packed({"a": t("F32", [2], -8, 0)}, D16[:8]),
     'tensor "a": "data_offsets" must be non-negative and ascend'),
    ("offsets-wide", packed('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]}}', D16[:8]),
     "not valid JSON"),
    ("twice", packed('{"a":%s,"a":%s}' % (json.dumps(A), json.dumps(A)), D16[:8]),
     "not valid JSON: duplicate object key"),
    ("entry-list", packed({"a": [1]}, b""), 'tensor "a": its entry must be an object'),
    ("header-list", packed([], b""), "the header must be a JSON object"),
    ("header-not-json", packed("hello", b""), "not valid JSON"),
]


def make_safetensors():
    path = fresh("safetensors")
    for name, data, _ in SAFETENSORS:
        with open(os.path.join(path, name + ".safetensors"), "wb") as f:
            f.write(data)
    write_expected(path, [(name, message) for name, _, message in SAFETENSORS])


# --- checkpoints ---------------------------------------------------------------------------------------------------

def tensors():
    """{name: [dtype, shape, bytes]} of SMALL, written out by hand from the published tensor table."""
    out = {}

    def put(name, dtype, shape):
        n = 1
        for s in shape:
            n *= s
        unit = {"F32": struct.pack("<f", 0.5), "BF16": b"\x80\x3f", "F8_E4M3": b"\x38", "F8_E8M0": b"\x7f",
                "I8": b"\x22"}[dtype]
        out[name] = [dtype, shape, bytearray(unit * n)]

    def fp8(name, rows, cols):
        put(name + ".weight", "F8_E4M3", [rows, cols])
        put(name + ".scale", "F8_E8M0", [(rows + 31) // 32, (cols + 31) // 32])

    def fp4(name, rows, cols):
        put(name + ".weight", "I8", [rows, cols // 2])
        put(name + ".scale", "F8_E8M0", [rows, cols // 32])

    put("embed.weight", "BF16", [6, 32])
    put("head.weight", "BF16", [6, 32])
    put("norm.weight", "BF16", [32])
    for p, experts in (("layers.0", 2), ("layers.1", 2), ("layers.2", 2), ("mtp.0", 1)):
        for site in ("attn", "ffn"):
            put(f"{p}.{site}_norm.weight", "BF16", [32])
            put(f"{p}.hc_{site}_fn", "F32", [3, 32])
            put(f"{p}.hc_{site}_base", "F32", [3])
            put(f"{p}.hc_{site}_scale", "F32", [3])
        put(f"{p}.attn.attn_sink", "F32", [2])
        fp8(f"{p}.attn.wq_a", 32, 32)
        put(f"{p}.attn.q_norm.weight", "BF16", [32])
        fp8(f"{p}.attn.wq_b", 64, 32)
        fp8(f"{p}.attn.wkv", 32, 32)
        put(f"{p}.attn.kv_norm.weight", "BF16", [32])
        fp8(f"{p}.attn.wo_a", 32, 64)
        fp8(f"{p}.attn.wo_b", 32, 32)
        put(f"{p}.ffn.gate.weight", "BF16", [experts, 32])
        put(f"{p}.ffn.gate.bias", "F32", [experts])
        put(f"{p}.ffn.gate.bias_vl", "F32", [experts])
        for w in ("w1", "w2", "w3"):
            for e in range(experts):
                fp4(f"{p}.ffn.experts.{e}.{w}", 32, 32)
            fp8(f"{p}.ffn.shared_experts.{w}", 32, 32)
    put("layers.0.engram.embed.weight", "F8_E4M3", [5, 32])
    put("layers.0.engram.embed.scale", "F8_E8M0", [5, 1])
    fp8("layers.0.engram.wkv", 64, 32)
    put("layers.0.engram.q_weight", "BF16", [1, 32])
    put("layers.0.engram.k_weight", "BF16", [1, 32])
    put("layers.1.attn.compressor.wkv.weight", "BF16", [32, 32])
    put("layers.1.attn.compressor.wgate.weight", "BF16", [32, 32])
    put("layers.1.attn.compressor.norm.weight", "BF16", [32])
    put("layers.1.attn.indexer.wk.weight", "BF16", [32, 32])
    put("layers.1.attn.indexer.k_norm.weight", "BF16", [32])
    fp8("layers.1.attn.indexer.wq_b", 32, 32)
    put("layers.1.attn.indexer.weights_proj.weight", "BF16", [1, 32])
    fp8("mtp.0.main_proj", 32, 32)
    put("mtp.0.main_norm.weight", "BF16", [32])
    put("mtp.0.norm.weight", "BF16", [32])
    put("mtp.0.markov_head.embed.weight", "BF16", [6, 2])
    put("mtp.0.markov_head.head.weight", "BF16", [6, 2])
    put("mtp.0.confidence_head.proj.weight", "BF16", [1, 34])
    return out


def save(path, ts):
    header, data = {}, b""
    for name in sorted(ts):
        dtype, shape, raw = ts[name]
        header[name] = t(dtype, shape, len(data), len(data) + len(raw))
        data += bytes(raw)
    with open(path, "wb") as f:
        f.write(packed(header, data))


def shape_change(name, dtype=None, shape=None):
    def change(ts):
        if dtype:
            ts[name][0] = dtype
        if shape:
            ts[name][1] = shape
    return change


def byte_change(name, at, value):
    def change(ts):
        ts[name][2][at:at + len(value)] = value
    return change


def drop(name):
    return lambda ts: ts.pop(name)


def extra(name):
    return lambda ts: ts.__setitem__(name, ["U8", [1], bytearray(1)])


CHECKPOINTS = [     # name, change of the tensors, token map or None, expected message
    ("good", None, None, "ok"),
    ("good-map", None, [0, 1, 2, 3, 3, 0], "ok"),
    ("good-vision", extra("vision.blocks.0.norm.weight"), None, "ok"),
    ("missing", drop("layers.2.ffn.experts.1.w2.weight"), None,
     'tensor "layers.2.ffn.experts.1.w2.weight" is missing, expected I8 [32, 16]'),
    ("missing-scale", drop("layers.1.attn.wo_a.scale"), None,
     'tensor "layers.1.attn.wo_a.scale" is missing, expected F8_E8M0 [1, 2]'),
    ("missing-gate", drop("layers.1.attn.compressor.wgate.weight"), None,
     'tensor "layers.1.attn.compressor.wgate.weight" is missing, expected BF16 [32, 32]'),
    ("extra", extra("layers.3.attn_norm.weight"), None,
     'tensor "layers.3.attn_norm.weight" does not belong to the shape in config.json'),
    ("extra-head", extra("lm_head.weight"), None, 'tensor "lm_head.weight" does not belong to the shape'),
    ("shape", shape_change("layers.0.attn.wo_a.weight", shape=[64, 32]), None,
     'tensor "layers.0.attn.wo_a.weight" is F8_E4M3 [64, 32], expected F8_E4M3 [32, 64]'),
    ("rank", shape_change("norm.weight", shape=[1, 32]), None,
     'tensor "norm.weight" is BF16 [1, 32], expected BF16 [32]'),
    ("dtype", shape_change("layers.0.attn.wq_a.weight", dtype="I8"), None,
     'tensor "layers.0.attn.wq_a.weight" is I8 [32, 32], expected F8_E4M3 [32, 32]'),
    ("dtype-fp4", shape_change("layers.0.ffn.experts.0.w1.weight", dtype="U8"), None,
     'tensor "layers.0.ffn.experts.0.w1.weight" is U8 [32, 16], expected I8 [32, 16]'),
    ("dtype-scale", shape_change("mtp.0.main_proj.scale", dtype="U8"), None,
     'tensor "mtp.0.main_proj.scale" is U8 [1, 1], expected F8_E8M0 [1, 1]'),
    ("nan-scale", byte_change("layers.0.ffn.experts.1.w3.scale", 7, b"\xff"), None,
     'tensor "layers.0.ffn.experts.1.w3.scale": scale 7 is NaN (byte 255)'),
    ("nan-e4m3", byte_change("layers.0.attn.wkv.weight", 70, b"\xff"), None,
     'tensor "layers.0.attn.wkv.weight": element 70 (row 2, column 6) is not a finite number'),
    ("nan-table", byte_change("layers.0.engram.embed.weight", 33, b"\x7f"), None,
     'tensor "layers.0.engram.embed.weight": element 33 (row 1, column 1) is not a finite number'),
    ("inf-bf16", byte_change("embed.weight", 2 * 40, b"\x80\x7f"), None,
     'tensor "embed.weight": element 40 (row 1, column 8) is not a finite number'),
    ("nan-bf16", byte_change("head.weight", 0, b"\xc0\xff"), None, 'tensor "head.weight": element 0'),
    ("inf-f32", byte_change("layers.0.hc_ffn_base", 8, b"\x00\x00\x80\xff"), None,
     'tensor "layers.0.hc_ffn_base": element 2 (row 0, column 2) is not a finite number'),
    ("map-short", None, [0, 1, 2], 'token_map.bin: ends after 3 entries, "vocab_size" is 6'),
    ("map-long", None, [0] * 7, 'token_map.bin: longer than the 6 entries of "vocab_size"'),
    ("map-range", None, [0, 1, 4, 0, 0, 0],
     'token_map.bin: entry 2 is 4, it must lie below "engram_compressed_vocab_size" 4'),
    ("map-negative", None, [0, -1, 0, 0, 0, 0], "token_map.bin: entry 1 is -1, it must lie below"),
]


def make_checkpoints():
    path = fresh("checkpoint")
    lines = []

    def folder(name, message):
        lines.append((name, message))
        here = os.path.join(path, name)
        os.makedirs(here)
        with open(os.path.join(here, "config.json"), "w") as f:
            f.write(text(SMALL))
        return here

    for name, change, token_map, message in CHECKPOINTS:
        here, ts = folder(name, message), tensors()
        if change:
            change(ts)
        save(os.path.join(here, "model.safetensors"), ts)
        if token_map:
            with open(os.path.join(here, "token_map.bin"), "wb") as f:
                f.write(struct.pack(f"<{len(token_map)}i", *token_map))

    def shards(name, message, edit):
        """Two files by tensor name; edit(weight_map, parts) breaks them. parts: {file name: {tensor: ...}}."""
        here, ts = folder(name, message), tensors()
        files = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
        weight_map = {k: files[k > "layers.1"] for k in sorted(ts)}
        parts = {f: {k: v for k, v in ts.items() if weight_map[k] == f} for f in files}
        index = {"metadata": {"total_size": sum(len(v[2]) for v in ts.values())}, "weight_map": weight_map}
        edit(weight_map, parts)
        for f, part in parts.items():
            save(os.path.join(here, f), part)
        with open(os.path.join(here, "model.safetensors.index.json"), "w") as f:
            json.dump(index, f, separators=(",", ":"))

    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shards("good-shards", "ok", lambda m, p: None)
    shards("shard-missing", "model.safetensors.index.json names a file that cannot be opened:",
           lambda m, p: p.pop(two))
    shards("shard-wrong", f'tensor "norm.weight" should be in {one}, but {two} holds it',
           lambda m, p: m.__setitem__("norm.weight", one))
    shards("shard-lacks", f'tensor "norm.weight" should be in {two}, but no file holds it',
           lambda m, p: p[two].pop("norm.weight"))
    shards("shard-unlisted", 'tensor "norm.weight" is not in the weight map of',
           lambda m, p: m.pop("norm.weight"))
    shards("shard-twice", 'tensor "norm.weight" is in both',
           lambda m, p: p[one].__setitem__("norm.weight", p[two]["norm.weight"]))
    shards("shard-path", 'the file of tensor "norm.weight" must be a file name without folder',
           lambda m, p: m.__setitem__("norm.weight", "../" + two))
    shards("shard-number", 'the file of tensor "norm.weight" must be a file name',
           lambda m, p: m.__setitem__("norm.weight", 2))
    folder("no-weights", "has neither model.safetensors nor model.safetensors.index.json, which names the shards")
    write_expected(path, lines)


if __name__ == "__main__":
    make_configs()
    make_safetensors()
    make_checkpoints()
