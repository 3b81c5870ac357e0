"""Models as servers and people name them: by directories whose words are written into a file, and by the Hub's names.

What a model says of itself makes no lines of a configuration; a cache that is damaged is told.
"""

from __future__ import annotations

import importlib.util
import json
import random
import tempfile
from pathlib import Path
from unittest import mock

from typer.testing import CliRunner

from specc import algorithms
from specc.cli.main import app
from specc.config import load_text

from .hostile import EXAMPLES, raw
from .judging import outcome
from .maps import no_file
from .outcome import expect

ENDS = ("\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\u2029")
"""What ends a line."""
CLASSES = ("X", "LlamaForCausalLM", "LlamaForCausalLMEagle", "Qwen3MoeForCausalLM")
WORDS = ("architectures", "architectures", "torch_dtype", "dtype", "model_type", "transformers_version", "hidden_act")
"""Keys of config.json that are words."""
COMPILED = 0.2


def served(rng: random.Random) -> str:
    """`specc sglang check`, `specc vllm check` or `specc init` of two models, of which one says a line of YAML."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    draft, engine = rng.choice(["eagle", "standalone"]), rng.choice(["sglang", "sglang", "vllm", "init"])
    with tempfile.TemporaryDirectory() as folder:
        paths = [_model(rng, Path(folder), name) for name in ("target", draft)]
        given = {
            "sglang": ["--model-path", paths[0], "--speculative-draft-model-path", paths[1],
                       "--speculative-algorithm", draft.upper(), *rng.choice([[], ["--attention-backend", "triton"]])],
            "vllm": ["--model", paths[0], "--spec-model", paths[1], "--spec-tokens", "2",
                     "--spec-method", {"eagle": "eagle", "standalone": "draft_model"}[draft]],
            "init": [*paths, "-o", f"{folder}/c.yaml"],
        }[engine]  # fmt: skip
        dtype = rng.choice([["--dtype", "float16"], []]) if engine != "init" else []
        words = ["init"] if engine == "init" else [engine, "check", "--gpu", "h100", "--"]
        done = CliRunner().invoke(app, [*words, *given, *dtype])
    expect(done.exit_code in (0, 1, 2), f"{words} ends with {done.exit_code}: {done.output[-300:]}")
    expect("config/unknown-key" not in done.output, f"a model's word is a line: {done.output[-600:]}")
    expect(raw(done.output) is None, f"it shows {raw(done.output)}: {done.output[:300]!r}")
    return f"{words[0]} ends with {done.exit_code}"


def _model(rng: random.Random, folder: Path, name: str) -> str:
    """An example's directory, in which a word may have a key of its own behind it."""
    place = folder / name
    place.mkdir()
    keys = json.loads((EXAMPLES / "models" / name / "config.json").read_text())
    if name == "eagle":  # by the class that servers know it by
        keys["architectures"] = ["LlamaForCausalLMEagle"]
    if rng.random() < 0.7:
        word = f"{rng.choice(CLASSES)}{rng.choice(ENDS)}planted: 1{rng.choice([*ENDS, ''])}# "
        key = rng.choice(WORDS)
        keys[key] = [word] if key == "architectures" else word
    (place / "config.json").write_text(json.dumps(keys))
    return str(place)


def cached(rng: random.Random) -> str:
    """A model by its name, in a cache of the Hub in which anything is damaged."""
    from huggingface_hub import constants

    name = rng.choice(["owner/model", "a-b/c.d"])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "hub" / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        snapshot = place / "snapshots" / "0123abcd"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text((EXAMPLES / "models" / "target" / "config.json").read_text())
        branch = place / "refs" / "main"
        if rng.random() < 0.3:
            no_file(rng, branch)
        else:
            says = [b"0123abcd", b"0123abcd", b"\xff\xfe", b"", b"../../x", b"0123abcd\n", b"\0", b"0" * 5000]
            branch.write_bytes(rng.choice([*says, rng.randbytes(8)]))
        made = f"name: fuzzed\nalgorithm: NGRAM\narchs: [sm_90]\ntarget: {{model: {name}}}\n"
        with mock.patch.object(constants, "HF_HUB_CACHE", f"{folder}/hub"):
            return outcome(
                lambda: load_text(made, Path(folder) / "c.yaml", algorithms.names(), algorithms.needs), COMPILED, rng
            )
