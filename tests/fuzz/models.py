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
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specc.compiler import algorithms
from specc.compiler.config import LoadedConfig, load_config, load_text
from specc.compiler.config.models import read_model
from specc.compiler.config.models.states import RecurrentState
from specc.compiler.support.diagnostics import DiagnosticError
from specc.compiler.support.speculators import MARK

from . import legal, model_keys
from .config_texts import to_text
from .judging import outcome
from .maps import headers, token_maps
from .named import cached, served
from .outcome import expect

COMPILED = 0.2
"""Of what loads, the part that is compiled: a plan takes as long as many files."""


def model_directories(rng: random.Random) -> str:
    """Directories whose config.json says anything."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    with tempfile.TemporaryDirectory() as folder:
        strange = _directories(rng, Path(folder), [0, 1, 1, 2, 4])
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
            lambda: _blamed_rightly(lambda: load_text(made, path, algorithms.names(), algorithms.needs), strange),
            COMPILED,
            rng,
        )


def _blamed_rightly(load: Callable[[], LoadedConfig], strange: set[str]) -> LoadedConfig:
    """Load directories by paths that can all be some: what is wrong with their files is not told of the paths.

    ``strange`` are the names of those that say something of drafting that nobody can know.
    """
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
            _check_state(directory)
    _check_draft(loaded, strange)
    return loaded


def _check_draft(loaded: LoadedConfig, strange: set[str]) -> None:
    """Look whether what the draft says is told: of another kind, or of a format that an engine does not read."""
    target, draft = (loaded.model_dir(role) for role in ("target", "draft"))
    engine, kind = loaded.config.file.engine, algorithms.needs(loaded.config.algorithm).kind
    if draft is None or target is None or draft == target:
        return
    content = json.loads((draft / "config.json").read_text())
    expect(not (engine == "sglang" and MARK in content), "a draft in the format of speculators loads for SGLang")
    if kind is None or draft.name not in strange:
        return
    told = "config/unknown-draft" in {warning.code for warning in loaded.warnings}
    expect(told and engine is None, f"a draft of another kind loads for {engine}: {content}")


def _check_state(directory: Path) -> None:
    """Look whether a recurrent state has sizes that it can have, which grow with the drafts and not with the ranks."""
    state = RecurrentState.of(read_model(directory, directory.name).facts)
    if state is None:
        return
    sizes = (state.heads, state.rows, state.columns, state.groups, state.kernel)
    expect(all(type(size) is int and size > 0 for size in sizes), f"a state has the sizes {sizes}")
    of_drafts = [state.bytes(ranks=1, drafts=drafts, inputs=2, matrices=4) for drafts in (0, 1, 5)]
    expect(of_drafts[0] < of_drafts[1] < of_drafts[2], f"a state of {sizes} has {of_drafts} bytes")
    expect(of_drafts[0] >= 4 * state.heads * state.rows * state.columns, "matrices are in the state")
    expect(state.bytes(ranks=2, drafts=1, inputs=2, matrices=4) <= of_drafts[1], "ranks have more than all of it")


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


def _directories(rng: random.Random, folder: Path, changes: list[int]) -> set[str]:
    """Two model directories, ``m`` and ``d``, with so many keys that say anything, and fewer that are missing.

    Of some pairs only the draft is unusual, and nothing is damaged.
    Returns the names of those that say something of drafting that nobody can know.
    """
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64,
            "vocab_size": 2048, "dtype": "bfloat16"}  # fmt: skip
    strange: set[str] = set()
    plain = rng.random() < 0.4
    changes = [0] if plain else changes
    for name in ("m", "d"):
        (folder / name).mkdir()
        facts = {"model_type": rng.choice(["llama", "qwen3_next", "deepseek_v3", "gemma3", "mamba", "no_such", "gpt2"])}
        facts |= sizes | {
            rng.choice(model_keys.MODEL_KEYS): model_keys.fact(rng, 2) for _ in range(rng.choice(changes))
        }
        if rng.random() < (0.5 if name == "m" else 0.8):
            facts |= {"architectures": [model_keys.a_class(rng)], "num_hidden_layers": rng.choice([1, 3, 4, 5])}
            facts |= {"model_type": rng.choice(["llama", "llama", facts["model_type"]])}
        if plain:
            facts |= {"model_type": "llama"} | ({"num_hidden_layers": 12} if name == "m" else {})
        elif name == "m" and rng.random() < 0.3:
            facts |= {"num_hidden_layers": (layers := rng.choice([4, 8]))} | model_keys.state(rng, layers)
        if rng.random() < 0.2:
            facts |= model_keys.quantisation(rng)
        for key in rng.sample(list(facts), rng.choice(changes) // 2):
            del facts[key]
        if not plain and rng.random() < 0.2:
            facts |= {"max_position_embeddings": rng.choice([64, 1 << 30]), "rope_parameters": model_keys.rope(rng)}
        if name == "d" and rng.random() < 0.4 and model_keys.drafting(rng, facts):
            strange.add(name)
        if name == "d" and rng.random() < 0.15:
            facts = model_keys.in_speculators(rng, facts)
        if plain:
            (folder / name / "config.json").write_text(json.dumps(facts))
        else:
            _write(rng, folder / name / "config.json", facts)
    return strange


def _write(rng: random.Random, place: Path, facts: dict[str, Any]) -> None:
    """Write a config.json, now and then a damaged one, or none."""
    made = json.dumps(rng.choice([[facts], None, 3]) if rng.random() < 0.05 else facts)
    if rng.random() < 0.15:
        made = model_keys.renumbered(rng, made)
    if rng.random() < 0.1:
        made = rng.choice(
            ["", "{", made[: len(made) // 2], "[" * 5000, "\x00", made * 2, '{"a": NaN}', "\ufeff" + made]
        )
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
        strange = _directories(rng, Path(folder), [0, 0, 0, 1])
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
        _check_draft(loaded, strange)
        named = "--algorithm" in words or loaded.model_dir("draft") != Path(folder) / "d"
        expect(named or not strange, f"a draft of another kind is taken for one of {loaded.config.algorithm}")
        return outcome(lambda: loaded, COMPILED, rng)


KINDS: dict[Callable[[random.Random], str], int] = {
    model_directories: 6, first: 2, served: 2, cached: 2, token_maps: 3, headers: 3,
}  # fmt: skip


def case(seed: str, rng: random.Random) -> str:
    """One directory or file."""
    legal.install_plugin()
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return kind(rng)
