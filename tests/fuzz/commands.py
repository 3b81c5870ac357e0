"""Command lines of every command of specc, as hostile as an argument can be.

Commands, options and their types are asked of the command line itself, so that a new one is attacked without anyone
remembering it. A command ends with 0, 1, 2 or 3, and says why; nothing of a traceback and nothing raw is shown, nothing
is written but what was asked for, and nobody is asked over the network.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from typer.main import get_command
from typer.testing import CliRunner

from specc.cli import opt, reporting
from specc.cli.main import app
from specc.compiler.support.codes import CODES
from specc.engines.sglang.check import command_line as of_sglang
from specc.engines.vllm.check import command_line as of_vllm

from .hostile import SAYINGS, place, raw
from .outcome import BLAMED_ON_US, LONGEST, expect

PATHS = (
    "~nosuch", "~nosuch/x", "~", "~/x", "~root", "target", "target", "\U0001f600", "eagle", "standalone", "empty",
    "target/config.json",
    "text.txt", "text.txt/x", "bytes.txt", "pipe", "loop", "loop/x", "nowhere", "deep.json", "broken.whl", "pipe.whl",
    "c.yaml", "c.yaml", "small.yaml", ".", "..", "", "-", "/dev/null", "/dev/full", "no/such", "gpt2",
    "meta-llama/Llama-3.1-8B", "http://localhost/x", "x" * 255, "x" * 5000, "x/" * 3000, "x" * 5000 + ".whl",
    "~" + "x" * 5000, "x" * 5000 + ".yaml", "\udcff.yaml", "\x1b[2J", "a\nb.yaml", "\u202ex.json", "\ud800", "a\x00b",
)  # fmt: skip
"""What a path may be; those without a slash in front end up in the folder."""
NUMBERS = (
    "0", "1", "2", "-1", "-0", "3", "64", "9" * 12, "9" * 20, "9" * 4300, "9" * 4301, "-" + "9" * 4301, "1" + "0" * 400,
    "", " ", "x", "1.5", "1e3", "1e999", "nan", "inf", "-inf", "0x10", "1_0", "\u0663", "\u00b2", "\x1b[2J",
)  # fmt: skip
"""What a number may be."""
LISTS = (
    "1",
    "1,2",
    "2,1",
    ",",
    "1,,1",
    "1,x",
    "9" * 4301,
    "\u00b2",
    "\u0663",
    "sm_90",
    "sm_90,h100",
    "native",
    "x\n,y",
    "\uff13",
    "\u0663x1x4",
    "3,\uff10",
)
ADDRESSES = (
    "", "http", "http://", "http:///x", "ftp://x", "http://x:0", "http://x:99999", "http://[", "http://u:p@x",
    "http://x?y", "http://x/#y", "http://x y", "http://\u00e9", "http://x\n", "\x1b[2J", "http://" + "x" * 5000, "1",
)  # fmt: skip
"""What of an address is refused, so that nobody is asked."""
SMALL = """\
name: fuzzed
algorithm: STANDALONE
num_steps: 2
buckets: [1, 2]
max_requests: 2
archs: [sm_90]
target: {hidden_size: 64, num_layers: 1, num_kv_heads: 1, head_dim: 64, vocab_size: 256, dtype: bfloat16}
draft: {hidden_size: 64, num_layers: 1, num_kv_heads: 1, head_dim: 64, vocab_size: 256, dtype: bfloat16}
"""
"""A configuration that every command takes."""
ELSEWHERE = ("help", "version", "install_completion", "show_completion")
"""Options that are typer's own."""
HEAVY = ("--emit", "--jobs", "--cache", "--no-cache", "-j", "--force")
"""Options of `build` that are drawn elsewhere, or stand for seconds of a compiler."""


@functools.cache
def commands() -> Mapping[tuple[str, ...], Sequence[Any]]:
    """The parameters of every command by its words; `specc-opt` is one, under its own name."""
    parameters = {("specc-opt",): get_command(opt.app).params}
    for name, command in get_command(app).commands.items():
        inner = getattr(command, "commands", None)
        parameters |= (
            {(name, sub): subcommand.params for sub, subcommand in inner.items()}
            if inner
            else {(name,): command.params}
        )
    return {
        words: [parameter for parameter in params if parameter.name not in ELSEWHERE]
        for words, params in parameters.items()
    }


def case(seed: str, rng: random.Random) -> str:
    """One command line, run."""
    words = rng.choice([words for words, params in commands().items() for _ in range(1 + min(len(params), 8))])
    with place(rng) as folder:
        (folder / "c.yaml").write_text(SMALL)
        (folder / "small.yaml").write_text(
            SMALL + "tuning: " + rng.choice(["t.yaml", '"~nosuch"', "x" * 4000, '"\\0"'])
        )
        before = _files(folder)
        given = _line(rng, words)
        program, inner = (opt.app, given) if words == ("specc-opt",) else (app, [*words, *given])
        done = CliRunner().invoke(program, inner)
        judge(words, done)
        after = _files(folder)
    shapes = [said for option, said in itertools.pairwise(given) if option == "--shapes"]
    expect(done.exit_code or "".join(shapes).isascii(), f"{words} takes shapes called {shapes}")
    expect(done.exit_code in (0, 3) or after == before, f"a failed {words} left {set(after) ^ set(before)}")
    expect(done.exit_code or all(after.get(file) for file in before), f"{words} removed {set(before) - set(after)}")
    return f"{' '.join(words)} ends with {done.exit_code}"


def judge(words: tuple[str, ...], done: Any) -> None:
    """Look at how a command has ended, and at what it has said."""
    error, shown = done.exception, done.output
    unwritable = isinstance(error, OSError) and reporting._unwritable(error)
    expect(error is None or isinstance(error, SystemExit) or unwritable, f"{words} raises {error!r:.300}")
    expect(done.exit_code in (0, 1, 2, 3), f"{words} ends with {done.exit_code}: {shown[-300:]!r}")
    expect("Traceback" not in shown, f"{words}: {shown[-300:]!r}")
    expect(raw(shown) is None, f"{words} shows {raw(shown)}: {shown[:300]!r}")
    expect(len(shown) <= LONGEST, f"{words} shows {len(shown)} characters")
    codes = re.findall(r"(?:error|warning)\[([a-z/-]+)\]", shown) + re.findall(r'"code": "([a-z/-]+)"', shown)
    internal = [
        code for code in codes if code not in CODES or code.startswith(BLAMED_ON_US[: 1 + (words[0] != "specc-opt")])
    ]
    expect(not internal, f"{words}: {internal}: {shown[:300]!r}")
    explained = codes or "Error" in shown or unwritable
    expect(
        done.exit_code not in (1, 2) or explained, f"{words} ends with {done.exit_code} and does not say why: {shown!r}"
    )


def _files(folder: Path) -> dict[str, int]:
    """The files of the folder that are no caches, and which they are."""
    skipped = ("cache", "tmp", "home")
    return {
        str(file.relative_to(folder.parent)): file.lstat().st_ino
        for file in folder.parent.rglob("*")
        if not {*skipped} & {*file.relative_to(folder.parent).parts[1:2]}
    }


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _line(rng: random.Random, words: tuple[str, ...]) -> list[str]:
    """The arguments of a command: most of what it needs, and any of the rest, some of it twice."""
    needed = {("build",): ["--emit", rng.choice(["plan", "specir", "kernels"])], ("run",): ["--prompt", "x"]}
    line: list[str] = needed.get(words, [])
    behind: list[str] = []
    for parameter in commands()[words]:
        if words == ("build",) and parameter.opts[0] in HEAVY:
            continue
        argument = parameter.param_type_name == "argument"
        chance = 0.97 if parameter.required or argument else min(0.3, 1.5 / len(commands()[words]))
        for _ in range(rng.choice([1] * (29 if argument and parameter.nargs == 1 else 3) + [2])):
            if rng.random() < chance:
                value = _value(rng, words, parameter)
                behind += value if argument else []
                line += [] if argument else [rng.choice(parameter.opts + parameter.secondary_opts), *value]
    if rng.random() < 0.05:
        line.insert(rng.randrange(len(line) + 1), rng.choice([f"--{saying}" for saying in SAYINGS if saying] + ["-x"]))
    if words in SERVERS:
        return [*line, *(["--"] if rng.random() < 0.95 else []), *behind]
    return [*behind, *line] if rng.random() < 0.5 else [*line, *behind]


def _value(rng: random.Random, words: tuple[str, ...], parameter: Any) -> list[str]:
    """What is said of a parameter: mostly of its type, sometimes anything."""
    if parameter.param_type_name != "argument" and parameter.is_flag:
        return []
    if words == ("bench-serve",) and parameter.name in ("url", "against"):
        return [rng.choice(ADDRESSES)]
    if words in SERVERS and parameter.param_type_name == "argument":
        return SERVERS[words](rng)
    if (known := _known(words, parameter)) and rng.random() < 0.6:
        return [rng.choice(known)]
    if rng.random() < 0.1:
        return [rng.choice([*SAYINGS, *PATHS, *NUMBERS])]
    kind = str(parameter.type_descriptor.annotation)
    choices = parameter.type_descriptor.annotation
    if isinstance(choices, type) and issubclass(choices, enum.Enum):
        return [rng.choice([choice.value for choice in choices])]
    if "Path" in kind or parameter.name in ("program", "source", "json_schema"):
        return [rng.choice(PATHS)]
    if "int" in kind or "float" in kind:
        return [rng.choice(NUMBERS)]
    return [rng.choice([*SAYINGS, *LISTS, *NUMBERS])]


def _known(words: tuple[str, ...], parameter: Any) -> Sequence[str]:
    """What a parameter could rightly be."""
    if words[0] in ("bench", "tune") and torch.cuda.is_available() and parameter.name in ("config", "target"):
        return ("text.txt",)  # where something could be measured, it would be for seconds
    return {
        "config": ("c.yaml",), "against": ("c.yaml", "none"), "source": ("c.yaml", "-"), "target": ("target", "c.yaml"),
        "draft": ("eagle", "standalone", "target"), "text": ("text.txt",), "tokenizer": ("target",),
        "engine": ("sglang", "vllm"),
        "size": ("2", "20"), "algorithm": ("EAGLE", "standalone"), "gpu": ("h100", "sm_100"), "prompt": ("x",),
        "verify": ("target_only", "greedy"), "sampling": ("top_k", "grammar,penalties"), "outputs": ("logprobs",),
        "logits": ("sharded",), "topk": ("1", "2"), "num_steps": ("1", "2"), "name": ("fuzzed",),
        "shapes": ("3", "auto", "\uff13"),
    }.get(parameter.name, ())  # fmt: skip


def _sglang(rng: random.Random) -> list[str]:
    """The command of a server of SGLang's: one that is served, with arguments changed, left out, or anything."""
    draft = rng.choice(["eagle", "standalone"])
    options = {
        "--model-path": "target", "--speculative-draft-model-path": draft,
        "--speculative-algorithm": draft.upper(), "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1", "--attention-backend": "triton", "--dtype": rng.choice(["float16", "float32"]),
    }  # fmt: skip
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        key = rng.choice([*of_sglang.KNOWN, *options])
        options[key] = rng.choice([*SAYINGS, *PATHS, *PATHS, *NUMBERS, "EAGLE3", "NEXTN", "fa3", "xgrammar", "auto"])
    for key in rng.sample(list(options), rng.choice([0, 0, 0, 1])):
        del options[key]
    equals = rng.random() < 0.3
    line = [word for key, value in options.items() for word in ([f"{key}={value}"] if equals else [key, value])]
    front = rng.choice([[], [], ["python", "-m", "sglang.launch_server"], ["sglang", "serve"], ["A=\x1b", "B=1"]])
    line = [*front, *line]
    return [" ".join(line)] if rng.random() < 0.2 else line


def _vllm(rng: random.Random) -> list[str]:
    """The command of a server of vLLM's, as of SGLang's."""
    method = rng.choice(["eagle", "draft_model", "ngram"])
    drafts = {"eagle": "eagle", "draft_model": "standalone"}.get(method)
    options = {
        "--model": "target", "--spec-method": method, "--spec-tokens": "3", "--dtype": rng.choice(["half", "float32"])
    } | ({"--spec-model": drafts} if drafts else {})  # fmt: skip
    if rng.random() < 0.4:
        keys = {"method": method, "num_speculative_tokens": 3} | ({"model": drafts} if drafts else {})
        options = {"--model": "target", "--speculative-config": json.dumps(keys)}
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        key = rng.choice([*of_vllm.KNOWN, *options, "-sc.model", "-cc.a.b+", "--speculative-config.method", "--no-x"])
        options[key] = rng.choice([*SAYINGS, *PATHS, *PATHS, *NUMBERS, "{}", "[1]", '{"a": {"b": 1}}', "mtp", "auto"])
    for key in rng.sample(list(options), rng.choice([0, 0, 0, 1])):
        del options[key]
    equals = rng.random() < 0.3
    line = [word for key, value in options.items() for word in ([f"{key}={value}"] if equals else [key, value])]
    front = rng.choice([[], [], ["python", "-m", "vllm.entrypoints.openai.api_server"], ["vllm", "serve"], ["A=\x1b"]])
    line = [*front, *line]
    return [" ".join(line)] if rng.random() < 0.2 else line


def _started(rng: random.Random) -> list[str]:
    """A command that starts nothing, for no path is a program."""
    port = rng.choice([[], [], ["--port", rng.choice(NUMBERS)], [f"--port={rng.choice(NUMBERS)}"]])
    rest = [rng.choice([*SAYINGS, *PATHS]) for _ in range(rng.randrange(4))]
    return [rng.choice(PATHS), *port, *rest]


SERVERS = {("sglang", "check"): _sglang, ("vllm", "check"): _vllm, ("bench-serve",): _started}
"""Commands that are given the command line of a server, and what makes one."""
