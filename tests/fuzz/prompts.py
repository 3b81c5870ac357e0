"""Prompts: files of them for `specc run`, and token ids for the engine, of anything that calls itself one.

A prompt that can be run is run, every one of a file; one that is no text, of no token or too long is refused by its
number, before anything is run, and a file that is none is a finding.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from fakes import program
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.support.files.reading import MOST_BYTES
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError
from specc.lab.engine.models import loading
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import Draft
from specc.lab.engine.serving.requests.request import StopConditions

from .hostile import EXAMPLES, SAYINGS, place, raw
from .outcome import expect

PACKAGE = "specc_program_fuzzed_prompts"
CONTEXT = 40
"""Tokens of the engine's context."""
NUMBERS: tuple[Any, ...] = (
    0, 1, 5, 5, 5, 5, 2047, 2048, -1, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 10**5000, True, 1.0, 1.5, float("nan"),
    float("inf"), "5", "\ud800", b"5", None, [], [5], (), {}, object(),
)  # fmt: skip
"""What a token's id may be."""
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-16", "utf-32-le", "latin-1", "utf-8-sig")


def case(seed: str, rng: random.Random) -> str:
    """One file, one command line, or one list of ids."""
    if rng.random() < 0.4:
        return f"ids: {ids(rng)}"
    with place(rng) as folder, _runnable():
        return f"run: {run(rng, folder)}"


# --- files and command lines ------------------------------------------------------------------------------------------


def run(rng: random.Random, folder: Path) -> str:
    """`specc run`, of prompts on the command line, in a file, or both."""
    words, texts = [], list[str]()
    for _ in range(rng.choice([0, 0, 1, 2])):
        texts.append(rng.choice([*SAYINGS, "class Node:"]))
        words.append(f"--prompt={texts[-1]}")
    listed: list[str] | None = []
    if rng.random() < 0.8:
        path = folder / rng.choice(["p.json", "p.json", "p.txt", "p"])
        listed = _file(rng, path)
        words += ["--prompts", str(path)]
    options = {
        "--stop": SAYINGS,
        "--regex": SAYINGS,
        "--max-context": ("1", "0", "40", "9" * 20),
        "--logit-bias": ("5:1",),
    }
    for option in rng.sample(list(options), rng.choice([0, 0, 0, 0, 1])):
        words.append(f"{option}={rng.choice(options[option])}")
    plain = not any(word.startswith(tuple(options)) for word in words)
    fixed = ["--target", str(EXAMPLES / "models" / "target"), "--draft", str(EXAMPLES / "models" / "standalone")]
    given = [PACKAGE, *fixed, *words, "--max-new-tokens", "1", "--format", "json"]
    done = CliRunner().invoke(app, ["run", *given, *(["--max-context", str(CONTEXT)] if plain else [])])
    expect(done.exception is None or isinstance(done.exception, SystemExit), f"it raises {done.exception!r:.300}")
    expect(done.exit_code in (0, 1, 2), f"it ends with {done.exit_code}: {done.output[-300:]!r}")
    expect(raw(done.stderr) is None and raw(done.stdout) is None, f"it shows {raw(done.output)}: {done.output[:300]!r}")
    codes = re.findall(r'"code": "([a-z/-]+)"', done.stdout)
    if plain and listed is not None:
        _judge([*texts, *listed], done, codes)
    return f"ends with {done.exit_code} {codes[0] if done.exit_code == 1 else ''}".rstrip()


def _judge(texts: list[str], done: Any, codes: list[str]) -> None:
    """Look at what became of prompts in a file that can be read."""
    halves = [number for number, text in enumerate(texts, 1) if re.search("[\ud800-\udfff]", text)]
    if halves and done.exit_code == 1:
        expect(codes == ["run/bad-prompt"], f"half of a character is {codes}")
        expect(re.search(r"prompt \d+ of ", done.stdout), f"which prompt is not said: {done.stdout[:300]}")
        return
    long = [len(target().tokenizer(text)["input_ids"]) for text in texts if not halves]
    fits = texts and not halves and all(0 < length < CONTEXT for length in long) and "\0" not in "".join(texts)
    expect(not fits or done.exit_code == 0, f"prompts that fit end with {done.exit_code}: {done.output[:300]!r}")
    if done.exit_code == 0:
        prompts = [completion["prompt"] for completion in json.loads(done.stdout)["completions"]]
        expect(prompts == texts, f"of prompts {texts!r:.200} these are run: {prompts!r:.200}")


def _file(rng: random.Random, path: Path) -> list[str] | None:
    """Write a file of prompts; returns those that it has, None where it is of none or nobody asks."""
    match rng.randrange(10):
        case 0:
            text = rng.choice(
                ["", "[", "{}", "null", "3", '"x"', "NaN", "[" * 100_000, "[1]", "[null]", "[[]]", '["x", 1]']
            )
            path.write_text(text)
            return None
        case 1:
            path.write_bytes(rng.choice([b"\xff", b"\xed\xa0\x80", bytes(300), b'["\xff"]', b"x" * (MOST_BYTES + 1)]))
            return None
        case 2:
            path.symlink_to(rng.choice(["pipe", "loop", "empty", "/dev/zero", "no/such"]))
            return None
        case 3:
            numbers = ["9" * 4301, "9" * 4300, "1e999", "-0", "[" * 900 + "]" * 900]
            path.write_text(f"[{rng.choice(numbers)}]")
            return None
    listed = [rng.choice([*SAYINGS, "class Node:", "def f(", "x y " * 200]) for _ in range(rng.choice([1, 1, 2, 5]))]
    if path.suffix == ".json":
        path.write_text(json.dumps(listed, ensure_ascii=rng.random() < 0.8), errors="surrogatepass")
        return None if any("\ud800" <= char <= "\udfff" for char in "".join(listed)) and _unread(path) else listed
    path.write_text("\n".join(listed), encoding=(code := rng.choice(ENCODINGS)), errors="replace")
    return None if code != "utf-8" else [line for line in path.read_text().splitlines() if line.strip()]


def _unread(path: Path) -> bool:
    """Whether a file is no UTF-8."""
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return True
    return False


# --- token ids --------------------------------------------------------------------------------------------------------


def ids(rng: random.Random) -> str:
    """Token ids of anything: they are queued as they are, or refused with a typed error, and nothing is queued."""
    prompt = [
        rng.choice(NUMBERS) if rng.random() < 0.3 else rng.randrange(2048) for _ in range(rng.choice([0, 1, 3, 60]))
    ]
    given: Any = rng.choice(SAYINGS) if rng.random() < 0.3 else prompt
    engine = _engine()
    try:
        number = engine.add(given, StopConditions(2))
    except EngineError as error:
        expect(str(error).strip() and len(str(error)) < 300, f"{type(error).__name__} says {error!r:.300}")
        expect(raw(str(error)) is None, f"{type(error).__name__} shows {raw(str(error))}")
        expect(not engine.has_work, "what is refused is queued")
        return f"typed {type(error).__name__}"
    gone = engine.abort(number)
    kept = gone is not None and (isinstance(given, str) or list(gone.prompt_ids) == given)
    expect(
        kept and all(type(token) is int and 0 <= token < 2048 for token in gone.prompt_ids), f"{given!r:.200} is queued"
    )
    return "right"


@functools.cache
def target() -> TargetModel:
    """The example's target, as a program for it runs it."""
    return _loaded()[0]


@functools.cache
def _loaded() -> tuple[TargetModel, Draft, Any]:
    """Target and draft of the examples, loaded once, and the fake program of both."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from specc.lab.engine.models.drafts import StandaloneDraft

    models = EXAMPLES / "models"
    read = functools.partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32, local_files_only=True)
    target_model = TargetModel(
        read(models / "target"), AutoTokenizer.from_pretrained(models / "target", local_files_only=True)
    )
    draft = StandaloneDraft(read(models / "standalone"))
    return target_model, draft, program.make_plan(target_model, draft)


@functools.cache
def _engine() -> Engine:
    target_model, draft, plan = _loaded()
    return Engine(program.FakeProgram(plan), target_model, draft, max_context=CONTEXT)


@contextlib.contextmanager
def _runnable() -> Iterator[None]:
    """The fake program is a package, and its models are loaded already."""
    target_model, draft, plan = _loaded()
    module: Any = ModuleType(PACKAGE)
    module.load, module.Batch = (lambda device: program.FakeProgram(plan)), program.Batch
    with (
        mock.patch.dict(sys.modules, {PACKAGE: module}),
        mock.patch.object(loading, "load_target", return_value=target_model),
        mock.patch.object(loading, "load_draft", return_value=draft),
    ):
        yield
