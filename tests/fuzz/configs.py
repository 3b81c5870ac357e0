"""Configurations: every key of the schema at every kind of value, files and names.

The keys come from the schema itself, so that a new one is attacked without anyone remembering it. What loads must be
what the schema allows; what compiles must have a plan in which everything resolves and nothing that lives overlaps.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specc.compiler import algorithms
from specc.compiler.config import load_config

from . import legal
from .config_texts import ODD, block_of, blocks, breaks, damage, misspelt, schema, to_text, value
from .judging import judge, outcome
from .outcome import expect

COMPILED = 0.2
"""Of what loads, the part that is compiled: a plan takes as long as many files."""


def whole(rng: random.Random) -> str:
    """A configuration that should be legal, compiled."""
    return judge(to_text(rng, legal.draw(rng, small=rng.random() < 0.7)), 1.0, rng)


def changed(rng: random.Random) -> str:
    """A legal one in which values are replaced, left out, misspelt or moved."""
    keys = legal.draw(rng, small=True)
    broken = False
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        block, name = block_of(rng, keys)
        known = schema()[name]
        key = rng.choice([*known, *block])
        match rng.randrange(8):
            case 0:
                block.pop(key, None)
            case 1:
                block[misspelt(rng, key)] = block.pop(key, value(rng, known.get(key, {})))
            case 2:
                block[rng.choice([any_key for of in schema().values() for any_key in of])] = rng.choice(ODD)
            case _:
                if not isinstance(block.get(key), dict):
                    block[key] = value(rng, known.get(key, {}))
    for block, name in blocks(keys):
        for key, given in block.items():
            if key in schema()[name] and given is not None and key not in ("num_steps", "options", "target", "draft"):
                broken |= breaks(schema()[name][key], given)
    return judge(to_text(rng, keys), COMPILED, rng, legal=not broken)


def text(rng: random.Random) -> str:
    """The text of a legal one, damaged."""
    lines = to_text(rng, legal.draw(rng, small=True)).splitlines()
    for _ in range(rng.randint(1, 6)):
        damage(rng, lines)
    return judge("\n".join(lines), COMPILED, rng)


def document(rng: random.Random) -> str:
    """Keys of the schema with values of any shape."""

    def any_value(depth: int) -> Any:
        if depth and rng.random() < 0.4:
            keys = [*schema()[""], *schema()["model"], "nonsense", ""]
            return {rng.choice(keys): any_value(depth - 1) for _ in range(rng.randint(0, 5))}
        if depth and rng.random() < 0.3:
            return [any_value(depth - 1) for _ in range(rng.randint(0, 4))]
        return rng.choice(ODD)

    content = {key: any_value(rng.randint(0, 4)) for key in rng.sample([*schema()[""], "x"], rng.randint(0, 12))}
    return judge(to_text(rng, content) if rng.random() < 0.9 else json.dumps(any_value(3)), COMPILED, rng)


def deep(rng: random.Random) -> str:
    """Text that is deep, long, or much of the same."""
    size = rng.choice([10, 100, 1000, 3000])
    made = rng.choice(
        [
            "[" * size, "{a: " * size, "- " * size, "? " * size,
            "a:\n" + "".join(" " * i + "a:\n" for i in range(min(size, 300))),
            "".join(f"k{i}: 1\n" for i in range(min(size, 400))), "topk: 2\n" * min(size, 400), "# c\n" * size,
            "a: &a [x]\n" + "b: [" + "*a, " * min(size, 900) + "]", "x" * size * 30, "\n" * size,
            '"' + "\\u0041" * size + '"',
            "name: " + "[" * size + "]" * size, f"num_steps: [{', '.join(['1'] * size)}]", "&a " * min(size, 300) + "x",
        ]
    )  # fmt: skip
    return judge(made if rng.random() < 0.5 else to_text(rng, legal.draw(rng, small=True)) + made, COMPILED, rng)


def files(rng: random.Random) -> str:
    """Names of files, and what may stand where a file is expected."""
    name = rng.choice(
        ["c.yaml", "a b.yaml", "a\nb.yaml", "é🙂.yaml", "x" * 240 + ".yaml", "x" * 400 + ".yaml", "-.yaml",
        "a\x1b[31m.yaml",
         "a\u202eb.yaml", "c", ".yaml", "a'b\".yaml", "\udcff.yaml", "a\x00b.yaml", "no/such/c.yaml", ""]
    )  # fmt: skip
    content = to_text(rng, legal.draw(rng, small=True)).encode("utf-8", errors="replace")
    for _ in range(rng.choice([0, 0, 1, 3])):
        at = rng.randint(0, len(content))
        content = (
            content[:at]
            + rng.choice([b"\xff", b"\x00", b"\xc3", b"\xef\xbb\xbf", b"\r", b"\xe2\x80\xa8"])
            + content[at:]
        )
    content = rng.choice(
        [content, content, content, b"", b" " * (1 << 18), content.decode("utf-8", "replace").encode("utf-16")]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        with contextlib.suppress(OSError, ValueError):
            match rng.randrange(8):
                case 0:
                    path.mkdir()
                case 1:
                    os.mkfifo(path)
                case 2:
                    path.symlink_to(path)
                case 3:
                    pass
                case 4:
                    path.write_bytes(content)
                    path.chmod(0)
                case _:
                    path.write_bytes(content)
        return outcome(lambda: load_config(path, algorithms.names(), algorithms.needs), COMPILED, rng, located=False)


def tuning_files(rng: random.Random) -> str:
    """Choices for launches, most of which a program of small vocabularies has; keys and lines that it has not."""
    keys = legal.draw(rng, small=True) | {"tuning": "t.yaml", "archs": ["sm_90"]}
    launches: list[dict[str, Any]] = []
    for _ in range(rng.randint(0, 3)):
        launch: dict[str, Any] = {
            "launch": rng.choice(["prepare_rows", "verify_argmax", "verify_draw", "compact", "x"])
        }
        if rng.random() < 0.5:
            launch["warps"] = rng.choice([1, 2, 4, 8, 16, 32, *ODD])
        if rng.random() < 0.3:
            launch["tile"] = rng.choice([512, 1024, 3, *ODD])
        if rng.random() < 0.3:
            launch["split"] = rng.choice([{bucket: rng.randint(1, 3)} for bucket in keys.get("buckets", [1])] + [*ODD])
        launches.append(launch)
    tuning: dict[str, Any] = {"gpu": "g", "arch": "sm_90", "specc": "0", "triton": "0", "launches": launches}
    if rng.random() < 0.2:
        tuning[rng.choice([*tuning, "x"])] = rng.choice(ODD)
    lines = to_text(rng, tuning).splitlines()
    if rng.random() < 0.3:
        damage(rng, lines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_text(to_text(rng, keys), errors="replace")
        (Path(folder) / "t.yaml").write_text("\n".join(lines), errors="replace")
        return outcome(lambda: load_config(path, algorithms.names(), algorithms.needs), 0.8, rng, located=True)


def command(rng: random.Random) -> str:
    """The command line: a legal end is 0, 1 or 2, and nothing of a traceback is shown."""
    from typer.testing import CliRunner

    from specc.cli.main import app

    keys = legal.draw(rng, small=True)
    if rng.random() < 0.7:
        block, name = block_of(rng, keys)
        key = rng.choice([*schema()[name]])
        block[key] = value(rng, schema()[name][key])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_text(to_text(rng, keys), errors="replace")
        wanted = rng.choice(
            [
                ["check"],
                ["check", "--format", "json"],
                ["explain"],
                ["explain", "--full"],
                ["report", "-o", f"{folder}/page.html"],
                ["build", "--emit", "plan", "-o", f"{folder}/out"],
            ]
        )
        done = CliRunner().invoke(app, [wanted[0], str(path), *wanted[1:]])
        expect(done.exit_code in (0, 1, 2), f"specc {wanted[0]} ends with {done.exit_code}: {done.output[-300:]}")
        expect("Traceback" not in done.output, done.output[-300:])
        left = [file for file in Path(folder).rglob("*") if file.is_file() and file != path]
        expect(done.exit_code == 0 or not left, f"a failed command left {left}")
        return f"{wanted[0]} ends with {done.exit_code}"


KINDS: dict[Callable[[random.Random], str], int] = {
    whole: 4, changed: 56, text: 18, document: 10, deep: 1, files: 5, command: 1, tuning_files: 6,
}  # fmt: skip


def case(seed: str, rng: random.Random) -> str:
    """One configuration."""
    legal.install_plugin()
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return kind(rng)
