"""What comes with models: config.json, weights' headers and token maps that say anything.

What a directory or a map says ends in a configuration that holds the documented ranges, or in a finding about it; what
is asked for memory or time that no model has is refused before it is taken.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specc import algorithms
from specc.config import LoadedConfig, load_config, load_text
from specc.support.diagnostics import DiagnosticError

from . import legal
from .config_texts import ODD, to_text
from .judging import outcome
from .maps import headers, token_maps
from .named import cached, served
from .outcome import expect

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
        loaded = load()
    except DiagnosticError as error:
        blames = [
            diagnostic.message
            for diagnostic in error.diagnostics
            if "is not a path" in diagnostic.message and "\0" not in diagnostic.message
        ]
        expect(not blames, f"a path that is one is blamed: {blames}")
        raise
    for role in ("target", "draft"):
        if (directory := loaded.model_dir(role)) is not None:
            factors = [*_factors(json.loads((directory / "config.json").read_text()))]
            expect(all(map(_scales, factors)), f"positions are scaled by {factors}")
    return loaded


def _factors(content: Any, *, scaling: bool = False) -> Iterator[object]:
    """What positions are scaled by, wherever a model says it."""
    for key, value in content.items():
        if scaling and key == "factor":
            yield value
        if isinstance(value, dict):
            yield from _factors(value, scaling=scaling or key in ("rope_scaling", "rope_parameters"))


def _scales(factor: object) -> bool:
    """Whether positions may be multiplied by it."""
    return factor is None or (type(factor) in (int, float) and 0 < float(str(factor)) <= 1 << 20)


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


KINDS: dict[Callable[[random.Random], str], int] = {
    model_directories: 6, first: 2, served: 2, cached: 2, token_maps: 3, headers: 3,
}  # fmt: skip


def case(seed: str, rng: random.Random) -> str:
    """One directory or file."""
    legal.install_plugin()
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return kind(rng)
