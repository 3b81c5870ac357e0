"""The text of configurations: values of every key that the schema has, and how they and their lines go wrong."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

from specc.compiler import algorithms
from specc.compiler.config.block import BLOCKS
from specc.compiler.config.schema import ConfigFile

from . import legal

ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 1 << 20, (1 << 20) + 1,
    1 << 31,
    1 << 63, -(1 << 63), 1 << 80, 0.0, -0.0, 0.5, 1.0, 1.5, 1e300, float("inf"), float("-inf"), float("nan"), "", " ",
    "x", "1", "true", "null", "EAGLE", "nosuch", "eagle ", "sm_90", "SM_90", "h100", "native", "bfloat16", "é", "🙂",
    "a\nb", "a\x00b", "\u202e", "\x1b[31m", "x" * 5000, "../x", "/", "~nobody/x", [], [0], [1], [1, 1], [3, 2, 1],
    [1, 2, 4, 8], [[1]], [None], ["a", "a"], [1 << 70], list(range(1, 100)), {}, {"a": 1}, {"model": "x"}, {"": {}},
)  # fmt: skip
SNIPPETS = (
    "", "null", "~", "true", "-1", "0", "1e3", ".nan", "-.inf", "0x1F", "0o17", "9" * 60, "1_000", "2024-01-01", "[",
    "]", "{",
    "}", "[1, [2, [3]]]", "{a: {b: c}}", "*x", "&x 1", "&x [*x]", "!!int x", "!!binary aGk=",
    "!!python/object:os.system x",
    "!!set {a}", "!!omap [a: 1]", "!<x> y", "! z", "'", '"', '"\\x00"', '"\\ud800"', "|", ">", "|\n  a\n  b",
    "%YAML 1.1",
    "---", "...", "- 1", "? a", ": b", "<<: *x", "<<: {topk: 2}", "\t", "\x00", "\u2028", "\u202e", "\ufeff", "é", "🙂",
    "# c", "@", "`", "a: b: c", "''", '""', "=", "\r", "\r\n", "&a [*a, *a]", "x: &y {z: *y}", "[" * 40, "{a: " * 40,
)  # fmt: skip


@cache
def schema() -> dict[str, dict[str, Any]]:
    """Every key by block: what the schema says of it. The blocks are ``""``, ``model`` and ``options``."""
    legal.install_plugin()
    whole = ConfigFile.model_json_schema()
    options: dict[str, Any] = {}
    for name in algorithms.names():
        options |= algorithms.needs(name).options.model_json_schema().get("properties", {})
    models = [whole["$defs"][block.__name__]["properties"] for block in BLOCKS.values()]
    blocks = {"": whole["properties"], "model": models[0] | models[1], "options": options}
    return {name: {key: _flat(rule) for key, rule in keys.items()} for name, keys in blocks.items()}


def _flat(rule: dict[str, Any]) -> dict[str, Any]:
    """One key's schema without the alternative null."""
    some = [option for option in rule.get("anyOf", ()) if option.get("type") != "null"]
    return {**rule, **some[0]} if len(some) == 1 else rule


def value(rng: random.Random, rule: dict[str, Any]) -> Any:
    """A value for a key: at its bounds, one of its words, or anything at all."""
    pool: list[Any] = []
    kind = rule.get("type")
    if kind == "integer":
        bounds = [rule.get("minimum", 0), rule.get("maximum", 1 << 20)]
        pool = [edge + by for edge in bounds for by in (-1, 0, 1)] + [1 << rng.randrange(24), rng.randint(1, 16)]
        pool += [(1 << rng.randrange(1, 24)) + rng.choice([-1, 1]), float(rng.randint(1, 9)), str(rng.randint(1, 9))]
    elif "enum" in rule or "const" in rule:
        words = rule.get("enum", [rule.get("const")])
        pool = [*words, rng.choice(words).upper(), rng.choice(words)[:-1], misspelt(rng, str(rng.choice(words)))]
    elif kind == "boolean":
        pool = [True, False, "yes", "no", "on", 0, 1]
    elif kind == "array":
        item = {**rule.get("items", {})}
        sizes = (0, 1, 2, 3, rule.get("maxItems", 8), rule.get("maxItems", 8) + 1)
        pool = [
            [value(rng, item) for _ in range(rng.choice(sizes))],
            sorted(rng.sample(range(1, 20), rng.randint(1, 5))),
        ]
    elif kind == "string":
        pool = ["a", "m", "eagle", "x" * rule.get("maxLength", 63), "x" * (rule.get("maxLength", 63) + 1)]
    if not pool or rng.random() < 0.25:
        return rng.choice(ODD)
    allowed = [candidate for candidate in pool if not breaks(rule, candidate)]
    return rng.choice(allowed if allowed and rng.random() < 0.5 else pool)


def breaks(rule: dict[str, Any], given: Any) -> bool:
    """Whether the schema alone forbids a value: kinds and bounds of numbers, flags and words."""
    kind = rule.get("type")
    if kind == "integer":
        wrong = type(given) is not int
        return wrong or given < rule.get("minimum", given) or given > rule.get("maximum", given)
    if kind == "boolean":
        return type(given) is not bool
    if "enum" in rule and kind == "string":
        return given not in rule["enum"] and not (given is True and "true" in rule["enum"])
    return False


def misspelt(rng: random.Random, word: str) -> str:
    """A word with a letter changed, doubled, left out or swapped."""
    if not word:
        return "x"
    at = rng.randrange(len(word))
    return rng.choice(
        [word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word[:at] + "x" + word[at + 1 :], word[::-1]]
    )


def blocks(keys: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """All blocks of a configuration, the outermost first, with their names in `schema`."""
    nested = [(keys, "")]
    for name, kind in (("target", "model"), ("draft", "model"), ("options", "options")):
        if isinstance(keys.get(name), dict):
            nested.append((keys[name], kind))
    return nested


def block_of(rng: random.Random, keys: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """One block, rather the outermost, with its name in `schema`."""
    return rng.choice([blocks(keys)[0], *blocks(keys)])


def damage(rng: random.Random, lines: list[str]) -> None:
    """Change, repeat or leave out a line."""
    index = rng.randrange(len(lines)) if lines else 0
    line = lines[index] if lines else ""
    at = rng.randint(0, len(line))
    key, colon, _ = line.partition(":")
    new = rng.choice(SNIPPETS)
    lines[index : index + 1] = rng.choice(
        [
            [new], [f"{key}{colon} {new}"], [], [line, line], [line[:at]], [line[:at] + new + line[at:]],
            [" " * rng.randint(0, 5) + rng.choice(list(schema()[""])) + ": 1", line], [line] * rng.choice([2, 5, 300]),
            [" " * rng.randint(1, 9) + line], [line.replace(":", rng.choice(["", "::", ": :", "\t:"]), 1)],
        ]
    )  # fmt: skip


def to_text(rng: random.Random, keys: Any) -> str:
    """YAML: values in flow style, or blocks on lines of their own, in any order."""
    if not isinstance(keys, dict):
        return json.dumps(keys)
    order = list(keys)
    if rng.random() < 0.3:
        rng.shuffle(order)
    lines = []
    for key in order:
        word = key if key.isidentifier() else json.dumps(key)
        if isinstance(keys[key], dict) and keys[key] and rng.random() < 0.5:
            lines.append(f"{word}:")
            lines += [f"  {json.dumps(inner)}: {_spelt(given)}" for inner, given in keys[key].items()]
        else:
            lines.append(f"{word}: {_spelt(keys[key])}")
        if rng.random() < 0.05:
            lines.append(rng.choice(["", "# a comment", "   "]))
    return "\n".join(lines) + "\n"


def _spelt(given: Any) -> str:
    """JSON, but for the numbers that it has no words for, and for what holds itself."""
    try:
        text = json.dumps(given)
    except ValueError:
        return "&itself [*itself]"
    return text.replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")
