"""Models as servers and people name them: by directories whose words are written into a file, and by the Hub's names.

What a model says of itself makes no lines of a configuration, drafts of kinds and formats that an engine has not are
refused, blocks have room for a recurrent state, and a cache that is damaged is told.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler import algorithms
from specc.compiler.config import load_text
from specc.compiler.support.speculators import MARK

from . import model_keys
from .hostile import EXAMPLES, raw
from .judging import outcome
from .maps import no_file
from .outcome import expect

ENDS = ("\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\u2029")
"""What ends a line."""
CLASSES = ("X", "LlamaForCausalLM", "LlamaForCausalLMEagle", "Qwen3MoeForCausalLM")
WORDS = ("architectures", "architectures", "torch_dtype", "dtype", "model_type", "transformers_version", "hidden_act")
"""Keys of config.json that are words."""
HEADS = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
"""Examples of heads -> the classes that SGLang knows them by."""
HYBRIDS = ("Qwen3NextForCausalLM", "NemotronHForCausalLM", "BambaForCausalLM", "KimiLinearForCausalLM")
"""Classes of targets that keep a recurrent state."""
TARGETS = ("", "", "line", "state", "gpt-oss")
DRAFTS = ("", "line", "line", "drafting", "drafting", "speculators", "speculators")
"""What is unusual about a model."""
STRANGE = "fuzzed_kind"
"""A key of no meaning, by which a draft is told again that says something of drafting which nobody can know."""
COMPILED = 0.2


def served(rng: random.Random) -> str:
    """`specc sglang check`, `specc vllm check` or `specc init` of two models that say anything, a line of YAML too."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    draft, engine = rng.choice([*HEADS, "standalone"]), rng.choice(["sglang", "sglang", "vllm", "init"])
    with tempfile.TemporaryDirectory() as folder:
        paths = [_model(rng, Path(folder), name) for name in ("target", draft)]
        target, keys = (json.loads(Path(path, "config.json").read_text()) for path in paths)
        given = {
            "sglang": ["--model-path", paths[0], "--speculative-draft-model-path", paths[1],
                       "--speculative-algorithm", draft.upper(), *rng.choice([[], ["--attention-backend", "triton"]])],
            "vllm": ["--model", paths[0], "--spec-model", paths[1], "--spec-tokens", "2",
                     "--spec-method", draft if draft in HEADS else "draft_model"],
            "init": [*paths, "-o", f"{folder}/c.yaml"],
        }[engine]  # fmt: skip
        dtype = rng.choice([["--dtype", "float16"], []]) if engine != "init" else []
        words = ["init"] if engine == "init" else [engine, "check", "--gpu", "h100", "--"]
        done = CliRunner().invoke(app, [*words, *given, *dtype])
    expect(done.exit_code in (0, 1, 2), f"{words} ends with {done.exit_code}: {done.output[-300:]}")
    expect("config/unknown-key" not in done.output, f"a model's word is a line: {done.output[-600:]}")
    expect(raw(done.output) is None, f"it shows {raw(done.output)}: {done.output[:300]!r}")
    if done.exit_code == 0 and engine != "init":
        _check_served(engine, target, keys, done.stdout)
    return f"{words[0]} ends with {done.exit_code}"


def _check_served(engine: str, target: dict[str, Any], draft: dict[str, Any], made: str) -> None:
    """Look at what is written for a server: of a draft that it has, in its element type, in blocks with their room."""
    expect(not (engine == "sglang" and MARK in draft), "SGLang serves a draft in the format of speculators")
    expect(STRANGE not in json.dumps(draft), f"{engine} serves a draft of another kind: {draft}")
    classes, block = target.get("architectures"), target.get("quantization_config")
    if engine == "sglang" and classes == ["GptOssForCausalLM"] and block and block["quant_method"] == "mxfp4":
        expect("dtype: float16" not in made, f"gpt-oss in mxfp4 is served in float16: {made}")
    for count, step in re.findall(r"^page_size: (\d+) .*in steps of (\d+)", made, re.MULTILINE):
        expect(int(count) > 0 and int(count) % int(step) == 0, f"blocks of {count} are in no steps of {step}")


def _model(rng: random.Random, folder: Path, name: str) -> str:
    """An example's directory, in which a word may have a key of its own behind it, and which may be of another kind."""
    place = folder / name
    place.mkdir()
    keys = json.loads((EXAMPLES / "models" / name / "config.json").read_text())
    if name in HEADS:  # by the class that servers know it by
        keys["architectures"] = [HEADS[name]]
    match rng.choice(TARGETS if name == "target" else DRAFTS):
        case "line":
            word = f"{rng.choice(CLASSES)}{rng.choice(ENDS)}planted: 1{rng.choice([*ENDS, ''])}# "
            key = rng.choice(WORDS)
            keys[key] = [word] if key == "architectures" else word
        case "state":
            keys |= {"num_hidden_layers": 8} | model_keys.state(rng, 8)
            keys |= rng.choice([{}, {"architectures": [rng.choice(HYBRIDS)]}])
        case "gpt-oss":
            keys |= {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 4}
            keys |= model_keys.quantisation(rng)
        case "drafting":
            keys |= {STRANGE: 1} if model_keys.drafting(rng, keys) else {}
        case "speculators":
            keys = model_keys.in_speculators(rng, keys)
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
