"""Text of modules as passes leave them, with tokens deleted, swapped, doubled, renamed or retyped."""

from __future__ import annotations

import random
import re
from functools import lru_cache
from pathlib import Path

from specc.compiler import algorithms
from specc.compiler.config import load_text
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.invariants import CheckEach, check_now
from specc.compiler.passes.pipeline import PASSES, default_passes
from specc.compiler.support.diagnostics import DiagnosticError

from . import legal
from .outcome import RIGHT, diagnosed, expect

POOL = 40
"""Modules that the cases of one seed start from, at every stage."""
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[%@]?[\w.\-]+|[^\S\n]+|.', re.DOTALL)
ODD = (
    "", "0", "1", "-1", "7", "99999999999999999999", "i1", "u8", "f32", "bf16", "B", "K", "N", "A", "V", "W", "%health",
    "@bonus", "%no_such", "module", "phase", "dim", "input", "carry", "output", "{", "}", "(", ")", "[", "]", ":", "=",
    ",", "->", '"', '"x"', "loc", "!kv<draft>", "!kv<target>", "\x00", "\u2028", "é", "\t", "//", "established",
    "typed",
)  # fmt: skip


@lru_cache(maxsize=POOL)
def stages(seed: str) -> list[tuple[str, int]]:
    """The text of a module before every pass, and how many passes had run."""
    rng = random.Random(seed)
    while True:
        try:
            loaded = load_text(
                legal.to_yaml(legal.draw(rng, small=True)), Path("fuzzed.yaml"), algorithms.names(), algorithms.needs
            )
            module, texts = start_module(loaded), []
            for number, step in enumerate(default_passes(loaded)):
                run_passes(module, [step], Context(loaded), [])
                texts.append((print_module(module), number + 1))
        except DiagnosticError:
            continue
        return texts


def mutate(rng: random.Random, text: str) -> str:
    """The text with a few of its tokens changed."""
    lines = text.splitlines()
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        index = rng.randrange(len(lines))
        if rng.random() < 0.25:
            second_index = rng.randrange(len(lines))
            match rng.randrange(3):
                case 0:
                    del lines[index]
                    lines = lines or [""]
                case 1:
                    lines.insert(second_index, lines[index])
                case _:
                    lines[index], lines[second_index] = lines[second_index], lines[index]
            continue
        lines[index] = _changed(rng, lines[index], text)
    return "\n".join(lines) + rng.choice(["\n", "\n", ""])


def _changed(rng: random.Random, line: str, text: str) -> str:
    """One line with a token changed."""
    tokens = TOKEN.findall(line)
    places = [i for i, token in enumerate(tokens) if token.strip()]
    if not places:
        return rng.choice(ODD)
    at = rng.choice(places)
    match rng.choices(range(7), (1, 1, 1, 1, 12, 6, 1))[0]:
        case 0:
            del tokens[at]
        case 1:
            tokens[at] = rng.choice(ODD)
        case 2:
            tokens.insert(at, tokens[at])
        case 3:
            second = rng.choice(places)
            tokens[at], tokens[second] = tokens[second], tokens[at]
        case 4:
            tokens[at] = _like(rng, tokens[at], text)
        case 5:
            numbers = [i for i in places if tokens[i].isdigit()]
            if numbers:
                tokens[rng.choice(numbers)] = str(rng.choice([0, 1, 2, 3, 5, 64, 1 << 31, 1 << 64]))
        case _:
            tokens[at] = tokens[at][: len(tokens[at]) // 2] + rng.choice(["", "x", "_2", "."])
    return "".join(tokens)


def _like(rng: random.Random, token: str, text: str) -> str:
    """Another token of the same kind, from anywhere in the text."""
    kind = token[0] if token[0] in '%@"' else r"[\w]"
    same = [candidate for candidate in set(TOKEN.findall(text)) if re.match(kind, candidate)]
    return rng.choice(sorted(same)) if same else token


def case(seed: str, rng: random.Random) -> str:
    """One module, parsed, checked, and perhaps taken through the passes that are left, or any."""
    legal.install_plugin()
    text, done = rng.choice(stages(f"specir/{seed}/{rng.randrange(POOL)}"))
    if rng.random() < 0.03:
        expect(print_module(parse_module(text, "f.specir")) == text, "a module does not round-trip")
    else:
        text = mutate(rng, text)
    try:
        module = parse_module(text, "fuzzed.specir")
        again = print_module(module)
        expect(print_module(parse_module(again)) == again, "what was parsed does not round-trip")
        check_now(module)
    except DiagnosticError as error:
        return diagnosed(error, located=False, ours=True)
    passes = default_passes()[done:]
    if rng.random() < 0.2:
        passes = [PASSES[rng.choice(list(PASSES))]() for _ in range(rng.randint(1, 4))]
    try:
        run_passes(module, passes, Context(), [CheckEach()])
    except DiagnosticError as error:
        return diagnosed(error, located=False, ours=True)
    return RIGHT
