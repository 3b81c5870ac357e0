"""Commands are asked in other ways than by their arguments' values: options of passes, shells, the environment.

Options of a pass are what its fields declare, each once. A shell that completes has words, or a line that says why not.
`doctor` shows what is there, whatever prints it. Objects of vLLM's arguments are joined, however deep they are.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_type_hints
from unittest import mock

from typer.testing import CliRunner

from specc.cli import completion, opt
from specc.cli.main import app
from specc.compiler.pass_manager.options import Range
from specc.compiler.pass_manager.pass_base import Pass
from specc.compiler.passes.pipeline import PASSES
from specc.engines.vllm.check.command_line import BLOCKS

from .commands import SMALL, judge
from .hostile import SAYINGS, place
from .outcome import expect

FLAGS = ("True", "False")
WORDS = (
    "true",
    "1",
    "yes",
    "",
    "x",
    "-1",
    "-5",
    "1_0",
    "+1",
    "1.0",
    "\u0663",
    "\uff13",
    "9" * 400,
    "None",
    "a:b",
    "f32x",
)
"""What no option of a pass is."""
NUMBERS = ("0", "1", "2", "7")


def _least(step: type[Pass], name: str) -> tuple[str, ...]:
    """The smallest number that an option may be, as a word."""
    hint = get_type_hints(step, include_extras=True)[name.replace("-", "_")]
    return tuple(str(known.least) for known in get_args(hint)[1:] if isinstance(known, Range))


def options(rng: random.Random) -> str:
    """Passes of a build up to one, whose options are said: all of it right, or one of them wrong."""
    step = rng.choice([step for step in PASSES.values() if fields(step)])
    known = {field.name.replace("_", "-"): field.default for field in fields(step)}
    said = {name: _right(rng, default) for name, default in known.items() if rng.random() < 0.7}
    pairs = [f"{name}={word}" for name, word in said.items()]
    if wrong := rng.random() < 0.6:
        name, default = rng.choice([*known.items()])
        more = [f"{name}={rng.choice([*FLAGS, *NUMBERS])}" for _ in range(2)]
        taken = {str: ("", "f32x", "1"), int: ("1", *_least(step, name))}.get(type(default), ())
        other = [f"{name}={word}" for word in WORDS if word not in taken]
        strange = [name, f"{name.replace('-', '_')}_={FLAGS[0]}", "x=1", "=1", "{}"]
        pairs = [pair for pair in pairs if not pair.startswith(f"{name}=")]
        pairs += rng.choice([more, [rng.choice(other)], [rng.choice(strange)]])
        rng.shuffle(pairs)
    before = [*PASSES][: [*PASSES].index(step.name)]
    with place(rng) as folder:
        (folder / "c.yaml").write_text(SMALL)
        text = ",".join([*before, f"{step.name}{{{','.join(pairs)}}}"])
        done = CliRunner().invoke(opt.app, ["c.yaml", "-p", text])
        judge(("specc-opt",), done)
    expect(not wrong or done.exit_code == 2, f"{pairs} is taken: {done.exit_code}")
    return f"{step.name} ends with {done.exit_code}"


def _right(rng: random.Random, default: Any) -> str:
    """A word that an option with this default may be; of one that is text the default alone is known."""
    if isinstance(default, bool):
        return rng.choice(FLAGS)
    return rng.choice(("0", "0", "1")) if isinstance(default, int) else default


def completing(rng: random.Random) -> str:
    """What bash says when somebody types a word of a command line."""
    words = rng.choice(["specc ch", "specc", "", "specc build a.yaml --arch sm_9", "specc '", *SAYINGS])
    at = rng.choice(["0", "1", "2", "99999", "9" * 30, "-1", "x", "1.5", "\u0663", *SAYINGS])
    said = {"COMP_WORDS": words, "COMP_CWORD": at}
    kept = {name: word for name, word in said.items() if "\0" not in word and _encodes(word) and rng.random() < 0.95}
    with place(rng), mock.patch.dict(os.environ, {"_SPECC_COMPLETE": "complete_bash"} | kept):
        for name in said.keys() - kept.keys():
            os.environ.pop(name, None)
        fault = completion.unasked()
        if fault is not None:
            expect(fault.isprintable() and len(fault) < 200, f"it says {fault!r:.200}")
            return "no question"
        done = CliRunner().invoke(app, [], prog_name="specc")
        judge(("completion",), done)
        expect(done.exit_code == 0, f"it ends with {done.exit_code}")
    return "words"


def _encodes(word: str) -> bool:
    """Whether an environment may hold a word."""
    with contextlib.suppress(UnicodeEncodeError):
        os.fsencode(word)
        return True
    return False


TOOLS = (
    b"printf 'sm_90 \\377\\376\\000\\033[2J'", b"yes 'sm_90 sm_80' | head -c 3000000", b"printf 'sm_%0100000d' 1",
    b"exit 3", b"kill -9 $$", b"echo sm_90 >&2", b"cat", b"\xff", b"",
)  # fmt: skip
"""What an assembler may do when it is asked for help."""


def doctor(rng: random.Random) -> str:
    """What is there, with assemblers and variables of anybody's."""
    with place(rng) as folder:
        variables = {f"SPECC_{_word(rng)}": _word(rng) for _ in range(rng.randint(0, 3))}
        for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
            tool = folder / f"tool{rng.randrange(9)}{_word(rng)[:40].replace('/', '')}"
            with contextlib.suppress(OSError, ValueError):
                tool.write_bytes(rng.choice([b"#!/bin/sh\n", b"#!/bin/sh\n", b"#!/no/such\n", b""]) + rng.choice(TOOLS))
                tool.chmod(rng.choice([0o755, 0o755, 0o755, 0o644, 0]))
            variables[name] = rng.choice([str(tool)] * 4 + [str(folder), "pipe", "loop", "x" * 5000, _word(rng)])
        with mock.patch.dict(os.environ, variables):
            done = CliRunner().invoke(app, ["doctor", *rng.choice([[], ["--format", "json"]])])
        judge(("doctor",), done)
    expect(done.exit_code == 0, f"doctor ends with {done.exit_code}: {done.output[-300:]!r}")
    return "shown"


def _word(rng: random.Random) -> str:
    """A word that a variable's name, or its value, may be."""
    return rng.choice([word for word in SAYINGS if "\0" not in word and "=" not in word and _encodes(word)])


def joined(rng: random.Random) -> str:
    """Objects of vLLM's arguments, behind dots or as JSON, some of which have no end."""
    depths = [rng.choice([1, 3, 16, 17, 1200, 3000]) for _ in range(rng.randint(1, 3))]
    name, words = rng.choice(BLOCKS), list[str]()
    for depth in depths:
        opened, closed = rng.choice([('{"a": ', "}"), ('{"a": ', "}"), ("[", "]")])
        written = '{"a": ' + opened * (depth - 1) + "1" + closed * (depth - 1) + "}"
        dotted = [f"{name}{'.a' * depth}", "1"]
        words += rng.choice([dotted, dotted, [name, written], [f"{name}.a", written]])
    with place(rng):
        server = ["--model", "target", "--spec-method", "ngram", "--spec-tokens", "2", "--dtype", "half", *words]
        done = CliRunner().invoke(app, ["vllm", "check", "--gpu", "h100", "--", *server])
        judge(("vllm", "check"), done)
    expect(done.exit_code in (0, 1), f"it ends with {done.exit_code}")
    return f"joined, ends with {done.exit_code}"


KINDS: dict[Callable[[random.Random], str], int] = {options: 4, completing: 3, doctor: 2, joined: 2}


def case(seed: str, rng: random.Random) -> str:
    """One question."""
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    return f"{kind.__name__}: {kind(rng)}"
