"""What comes with models: config.json, weights' headers and token maps that say anything.

What a directory or a map says ends in a configuration that holds the documented ranges, or in a finding about it; what
is asked for memory or time that no model has is refused before it is taken.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import random
import re
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from specc import algorithms
from specc.config import LoadedConfig, load_config, load_text
from specc.support.diagnostics import DiagnosticError
from specc.support.token_map import TokenMapError, check_token_map, read_offsets, read_token_map

from . import legal
from .config_texts import ODD, to_text
from .judging import outcome
from .outcome import RIGHT, expect

COMPILED = 0.2
"""Of what loads, the part that is compiled: a plan takes as long as many files."""
MODEL_KEYS = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "dtype", "torch_dtype", "hc_mult", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "layer_types",
    "layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "full_attention_interval",
    "num_kv_shared_layers", "num_nextn_predict_layers", "index_head_dim", "index_topk", "num_experts_per_tok",
    "quantization_config", "text_config", "eagle_config", "dflash_config", "target_layer_ids", "draft_vocab_size",
    "target_hidden_size", "architectures", "rope_scaling", "sliding_window", "num_experts", "auto_map",
    "backbone_hidden_size", "block_size", "rope_parameters", "max_position_embeddings", "attn_type_list",
)  # fmt: skip
"""What a config.json may say, and more."""
ROPE_TYPES = ("default", "linear", "linear", "dynamic", "yarn", "llama3", "x", 3, None)
NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e300",
    "-0",
    "0.5",
    "9" * 39,
    "9" * 41,
    "9" * 4299,
    "9" * 4301,
)
"""Words for numbers, most of which no size of a model is."""
CLASSES = (
    "LlamaForCausalLM", "LlamaForCausalLMEagle", "Eagle3LlamaForCausalLM", "DFlashDraftModel", "MtpHeads", "MiMoMTP",
    "Gemma4AssistantForCausalLM", "MedusaModel", "GPT2LMHeadModel",
)  # fmt: skip
"""What a config.json may call its model."""


def model_directories(rng: random.Random) -> str:
    """Directories whose config.json says anything."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    with tempfile.TemporaryDirectory() as folder:
        _directories(rng, Path(folder), [0, 1, 1, 2, 4])
        keys = legal.draw(rng, algorithm=rng.choice(algorithms.names()), small=True)
        for role in ("target", "draft"):
            if role in keys:
                kept = rng.sample(list(keys[role]), rng.choice([0, 0, 1, 3]))
                elsewhere = rng.choice(["no_such", ".", "m/config.json", "/dev/null", "m\x00", ""])
                where = elsewhere if rng.random() < 0.1 else rng.choice(["m", "d"])
                keys[role] = {key: keys[role][key] for key in kept} | {"model": where}
        path = Path(folder) / "c.yaml"
        made = to_text(rng, keys)
        return outcome(
            lambda: _blamed_rightly(lambda: load_text(made, path, algorithms.names(), algorithms.needs)), COMPILED, rng
        )


def _blamed_rightly(load: Callable[[], LoadedConfig]) -> LoadedConfig:
    """Load directories by paths that can all be some: what is wrong with their files is not told of the paths."""
    try:
        return load()
    except DiagnosticError as error:
        blames = [
            diagnostic.message
            for diagnostic in error.diagnostics
            if "is not a path" in diagnostic.message and "\0" not in diagnostic.message
        ]
        expect(not blames, f"a path that is one is blamed: {blames}")
        raise


def _directories(rng: random.Random, folder: Path, changes: list[int]) -> None:
    """Two model directories, ``m`` and ``d``, with so many keys that say anything, and fewer that are missing."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64,
            "vocab_size": 2048, "dtype": "bfloat16"}  # fmt: skip
    for name in ("m", "d"):
        (folder / name).mkdir()
        facts = {"model_type": rng.choice(["llama", "qwen3_next", "deepseek_v3", "gemma3", "mamba", "no_such", "gpt2"])}
        facts |= sizes | {rng.choice(MODEL_KEYS): _fact(rng, 2) for _ in range(rng.choice(changes))}
        if rng.random() < 0.5:
            facts |= {"architectures": [rng.choice(CLASSES)], "num_hidden_layers": rng.choice([1, 3, 4])}
        for key in rng.sample(list(facts), rng.choice(changes) // 2):
            del facts[key]
        if rng.random() < 0.2:
            facts |= {"max_position_embeddings": rng.choice([64, 1 << 30]), "rope_parameters": _rope(rng)}
        made = json.dumps(rng.choice([[facts], None, 3]) if rng.random() < 0.05 else facts)
        if rng.random() < 0.15:
            made = renumbered(rng, made)
        if rng.random() < 0.1:
            made = rng.choice(
                ["", "{", made[: len(made) // 2], "[" * 5000, "\x00", made * 2, '{"a": NaN}', "\ufeff" + made]
            )
        place = folder / name / "config.json"
        if rng.random() < 0.05:
            place.mkdir()
        else:
            place.write_text(made, errors="replace")


def first(rng: random.Random) -> str:
    """`specc init` on any two directories: a file that loads and compiles, or nothing and a finding."""
    from typer.testing import CliRunner

    from specc.cli.main import app

    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    with tempfile.TemporaryDirectory() as folder:
        _directories(rng, Path(folder), [0, 0, 0, 1])
        draft = rng.choice([[], [f"{folder}/d"], [f"{folder}/d"], [f"{folder}/d"], [f"{folder}/m"]])
        words = [f"{folder}/m", *draft, "-o", f"{folder}/c.yaml"]
        options = {"--algorithm": [*algorithms.names(), "nosuch"], "--topk": [1, 2, 16], "--num-steps": [1, 4, 16]}
        for option in rng.sample(list(options), rng.choice([0, 0, 1, 2])):
            words += [option, str(rng.choice(options[option]))]
        done = CliRunner().invoke(app, ["init", *words])
        expect(done.exit_code in (0, 1, 2), f"specc init ends with {done.exit_code}: {done.output[-300:]}")
        left = [file.name for file in Path(folder).iterdir() if file.name not in ("m", "d")]
        expect(left == ["c.yaml"] * (done.exit_code == 0), f"specc init ends with {done.exit_code} and left {left}")
        if done.exit_code:
            return f"init ends with {done.exit_code}"
        loaded = load_config(Path(folder) / "c.yaml", algorithms.names(), algorithms.needs)
        return outcome(lambda: loaded, COMPILED, rng)


def renumbered(rng: random.Random, made: str) -> str:
    """JSON in which one number is another word for one."""
    places = [match.span() for match in re.finditer(r"(?<=[\[ ])-?[\d.]+(?=[,\]}])", made)]
    start, end = rng.choice(places) if places else (len(made), len(made))
    return made[:start] + rng.choice(NUMBERS) + made[end:]


def _rope(rng: random.Random) -> dict[str, Any]:
    """What a model may say of its positions."""
    factor = rng.choice([2.0, 8, float("inf"), float("nan"), 1e300, -1.0, 1 << 80, rng.choice(ODD)])
    return {"rope_type": rng.choice(ROPE_TYPES), "factor": factor, "rope_theta": 10000.0}


def _fact(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.1:
        return _rope(rng)
    if rng.random() < 0.02:
        return [*range(rng.choice([60_000, 100_000]))]
    if depth and rng.random() < 0.2:
        return {rng.choice(MODEL_KEYS): _fact(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    odd = rng.choice([["full_attention", "sliding_attention"] * 2, ["mamba"] * 4, ["linear_attention",
        "full_attention"] * 2,
                      "M*-M", 256, 4, "float16", {"rope_type": "x"}, {"kv_cache_scheme": {"type": [],
                      "num_bits": {}}}])  # fmt: skip
    return rng.choice([rng.choice(ODD), odd])


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OTHERS = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint32)
SIZES: dict[Any, int] = {
    "I64": 8, "I32": 4, "U8": 1, "I8": 1, "U64": 8, "F32": 4, "F64": 8, "BF16": 2, "F8_E4M3": 1, "C64": 8, "BOOL": 1,
    "X": 1, "": 8, None: 8,
}  # fmt: skip
"""Types that a header may say, and bytes of an entry."""


def _tokens(rng: random.Random) -> Any:
    """What may stand where a list of tokens is expected."""
    count = rng.choice([0, 1, 2, 4, 8])
    listed: list[Any] = sorted(rng.sample(range(40), count))
    match rng.randrange(5):
        case 0 | 1:
            return listed
        case 2 if listed:
            listed[rng.randrange(count)] = rng.choice(ODD)
            return listed
        case 3:
            return rng.sample(range(-4, 60), count)
        case _:
            return rng.choice(ODD)


def _tensor(rng: random.Random) -> Any:
    """What torch may have saved: of any type, of more axes or entries than a map has, of repeated memory."""
    tensor: Any = torch.tensor(rng.sample(range(8), rng.choice([0, 1, 4]))).to(rng.choice([*WHOLE, *OTHERS]))
    match rng.randrange(7):
        case 0:
            return tensor[None]
        case 1 if len(tensor):
            return tensor[:1].expand(rng.choice([5, (1 << 24) + 1, 1 << 40, 1 << 60]))
        case 2:
            return torch.zeros(rng.choice([1, 1 << 40]), dtype=torch.int64, device="meta")
        case 3:
            return [tensor, tensor]
        case 4:
            return rng.choice([{"d2t": tensor}, (1, 2), "x", 3, None, [1 << 400, 2], b"12"])
        case _:
            return tensor


def token_maps(rng: random.Random) -> str:
    """Files of tokens: a list of whole numbers of the vocabulary, or an error that says which rule is broken."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map"
        match rng.randrange(6):
            case 0:
                path.write_text(json.dumps(_tokens(rng)))
            case 1:
                torch.save(rng.choice([_tokens, _tensor])(rng), path)
            case 2:
                torch.save(_tensor(rng), path)
            case 3 if rng.random() < 0.1:
                with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                    archive.writestr("map/data.pkl", bytes(rng.choice([10, 1 << 20, (1 << 28) + 1])))
            case 4:
                path.write_bytes(
                    rng.choice(
                        [
                            b"[" * 100_000,
                            b"[1" + b",1" * rng.choice([9, 9, 9, 1 << 24]) + b"]",
                            b"",
                            b"PK\3\4",
                            b"[1e999]",
                        ]
                    )
                )
            case _:
                _no_file(rng, path)
        if path.is_file() and rng.random() < 0.2:
            made = path.read_bytes()
            at = rng.randrange(len(made) + 1)
            path.write_bytes(made[:at] + rng.randbytes(rng.choice([0, 1, 8])) + made[at + rng.choice([0, 1, 50]) :])
        return _judged(lambda: read_token_map(path), rng)


def headers(rng: random.Random) -> str:
    """Weights whose header says anything of a tensor: the offsets that are there, or an error."""
    count, code = rng.choice([0, 1, 3, 4]), rng.choice([*SIZES])
    entry: dict[str, Any] = {"dtype": code, "shape": [count], "data_offsets": [0, count * SIZES[code]]}
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        odd = rng.choice([*ODD, [1 << 40], [1 << 24], [2, 2], [0, 1 << 62], [8, 0], [-8, 24], [count * 8, 0]])
        entry[rng.choice(["dtype", "shape", "data_offsets", "x"])] = odd
    header: Any = rng.choice(
        [{"d2t": entry, "fc.weight": {}}, {"d2t": entry}, {"d2t": entry}, {"t2d": entry}, rng.choice(ODD)]
    )
    encoded = json.dumps(header).encode()
    length = rng.choice([len(encoded)] * 6 + [0, len(encoded) - 1, len(encoded) + 9, 1 << 25, 1 << 40, (1 << 64) - 1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / rng.choice(["model.safetensors", "a.safetensors"])
        if rng.random() < 0.1:
            _no_file(rng, path)
        else:
            path.write_bytes(
                length.to_bytes(8, "little") + encoded + rng.choice([bytes, rng.randbytes])(rng.choice([0, 24, 32, 64]))
            )
        return _judged(lambda: read_offsets(Path(folder)), rng)


def _no_file(rng: random.Random, path: Path) -> None:
    """Put something else there than a file that can be read, or nothing."""
    match rng.randrange(4):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(rng.choice([str(path), "/dev/zero", "nowhere"]))
        case _:
            pass


def _judged(read: Callable[[], list[int] | None], rng: random.Random) -> str:
    """Read a map and compare it with a draft: whole numbers that are right, or a coded error that can be printed."""
    try:
        tokens = read()
        if tokens is None:
            return "no map"
        expect(len(tokens) <= 1 << 24, "a map of more tokens than a vocabulary has")
        expect(all(type(token) is int for token in tokens), "a token that is no whole number")
        check_token_map(tokens, rng.choice([len(tokens), 4]), 40)
        expect(tokens == sorted(set(tokens)) and all(0 <= token < 40 for token in tokens), "a map that breaks a rule")
    except TokenMapError as error:
        expect(error.code.startswith("map/") and len(str(error)) < 1000, f"{error.code}: {error!s:.200}")
        return f"diagnostic {error.code}"
    return RIGHT


KINDS: dict[Callable[[random.Random], str], int] = {model_directories: 6, first: 2, token_maps: 3, headers: 3}


def case(seed: str, rng: random.Random) -> str:
    """One directory or file."""
    legal.install_plugin()
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return kind(rng)
