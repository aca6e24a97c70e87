"""Writes a model as a checkpoint directory in the official layout: config.json, model-*.safetensors with their index,
token_map.bin, and the tokenizer's files.

Weights are stored as the training pass read them: FP8 tiles, FP4 experts, FP8 table rows, bf16, float32.
"""
import json
import os
import shutil
import struct

import numpy as np
import torch

import data
import quant

SHARD_BYTES = 15 << 20


def stored(model):
    """(name, dtype, tensor) of everything the files hold, in the order of the shape's tensors."""
    for name, kind, _ in model.c.tensors():
        w = model.w[name].detach().float().cpu()
        if ".ffn.experts." not in name:
            yield from stored_one(name, kind, w)
            continue
        stem, part = name.rsplit(".", 1)
        for e in range(w.shape[0]):
            yield from stored_one(f"{stem}.{e}.{part}", kind, w[e])


def stored_one(name, kind, w):
    """One tensor and its scales."""
    if kind in ("fp8", "rows"):
        values, scales = (quant.tiles if kind == "fp8" else quant.fp8q32)(w)
        yield name + ".weight", "F8_E4M3", quant.codes_fp8(values, scales, (32, 32) if kind == "fp8" else (1, 32))
        yield name + ".scale", "F8_E8M0", quant.scale_bytes(scales)
    elif kind == "fp4":
        values, scales = quant.fp4q32(w)
        yield name + ".weight", "I8", quant.codes_fp4(values, scales)
        yield name + ".scale", "F8_E8M0", quant.scale_bytes(scales)
    elif kind == "bf16":
        plain = name.endswith(("q_weight", "k_weight"))
        yield name + ("" if plain else ".weight"), "BF16", w.to(torch.bfloat16).view(torch.int16)
    else:
        yield name, "F32", w


def write_safetensors(path, tensors):
    """tensors: [(name, dtype, tensor)] in the order of the file."""
    header, offset = {}, 0
    for name, dtype, t in tensors:
        size = t.numel() * t.element_size()
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, t in tensors:
            f.write(t.contiguous().numpy().tobytes())


def shards(tensors):
    """The tensors in groups of at most SHARD_BYTES."""
    group, size = [], 0
    for entry in tensors:
        n = entry[2].numel() * entry[2].element_size()
        if group and size + n > SHARD_BYTES:
            yield group
            group, size = [], 0
        group.append(entry)
        size += n
    yield group


def byte_letters():
    """The letters by which byte-level tokenizers write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(rest)) for b in range(256)]


def tokenizer():
    """tokenizer.json of the bytes: 8 special ids, then one id a byte."""
    letters = byte_letters()
    special = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, s in enumerate(data.SPECIALS)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {s: i for i, s in enumerate(data.SPECIALS)} | {l: b + data.BYTE for b, l in enumerate(letters)}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                      "merges": []}}


def export(model, directory):
    """Writes the directory anew. Returns its bytes."""
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    groups = list(shards(stored(model)))
    names = [f"model-{k + 1:05d}-of-{len(groups):05d}.safetensors" for k in range(len(groups))]
    index = {"metadata": {"total_size": 0}, "weight_map": {}}
    for file, group in zip(names, groups):
        write_safetensors(os.path.join(directory, file), group)
        index["weight_map"].update({name: file for name, _, _ in group})
        index["metadata"]["total_size"] += sum(t.numel() * t.element_size() for _, _, t in group)
    texts = {"model.safetensors.index.json": index, "config.json": model.c.json, "tokenizer.json": tokenizer(),
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": data.SPECIALS[0],
                                       "eos_token": data.SPECIALS[1], "pad_token": data.SPECIALS[2]}}
    for file, content in texts.items():
        with open(os.path.join(directory, file), "w") as f:
            json.dump(content, f, indent=1)
            f.write("\n")
    model.token_map.cpu().numpy().astype("<i4").tofile(os.path.join(directory, "token_map.bin"))
    return sum(os.path.getsize(os.path.join(directory, f)) for f in os.listdir(directory))


# --- reading back -----------------------------------------------------------------------------------------------------

CODES = {"F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "I8": np.uint8, "U8": np.uint8, "BF16": np.int16, "I32": np.int32,
         "I64": np.int64, "F32": np.float32}


def read_safetensors(path):
    """{name: (dtype, numpy array of codes)}."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        blob = f.read()
    values = lambda t: np.frombuffer(blob[slice(*t["data_offsets"])], CODES[t["dtype"]]).reshape(t["shape"]).copy()
    return {name: (t["dtype"], values(t)) for name, t in header.items() if name != "__metadata__"}


def edit_safetensors(path, change):
    """change(name, array of codes) edits a tensor in place and says whether it did; the file keeps its layout."""
    with open(path, "r+b") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        for name, (dtype, a) in read_safetensors(path).items():
            if change(name, a):
                f.seek(8 + size + header[name]["data_offsets"][0])
                f.write(a.tobytes())


def powers(scales):
    """UE8M0 bytes -> float64 powers of two."""
    return (torch.from_numpy(scales).int() << 23).view(torch.float32).double()


def decoded(directory):
    """Float64 values of a checkpoint directory, {name without ".weight": tensor}."""
    raw = {}
    for file in sorted(f for f in os.listdir(directory) if f.endswith(".safetensors") and f != "golden.safetensors"):
        raw.update(read_safetensors(os.path.join(directory, file)))
    out = {}
    for name, (dtype, a) in raw.items():
        stem = name.removesuffix(".weight")
        if name.endswith(".scale"):
            continue
        t = torch.from_numpy(a)
        if dtype == "F8_E4M3":
            scale = powers(raw[stem + ".scale"][1])
            rows = 1 if name.endswith("engram.embed.weight") else 32
            scale = scale.repeat_interleave(rows, 0).repeat_interleave(32, 1)[:t.shape[0], :t.shape[1]]
            t = t.view(torch.float8_e4m3fn).float().double() * scale
        elif dtype == "I8":
            codes = torch.stack((t & 15, t >> 4), -1).flatten(-2).long()
            table = torch.tensor(quant.E2M1 + tuple(-v for v in quant.E2M1), dtype=torch.float64)
            t = table[codes] * powers(raw[stem + ".scale"][1]).repeat_interleave(32, 1)
        elif dtype == "BF16":
            t = t.view(torch.bfloat16).double()
        out[stem] = t.double()
    return out
