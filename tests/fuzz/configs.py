"""Configurations: every key of the schema at every kind of value, files, names and model directories.

The keys come from the schema itself, so that a new one is attacked without anyone remembering it. What loads must be
what the schema allows; what compiles must have a plan in which everything resolves and nothing that lives overlaps.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from specc import algorithms
from specc.config import load_config, load_text
from specc.config.schema import ConfigFile

from . import legal
from .judging import judge, outcome
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
    "backbone_hidden_size", "block_size",
)  # fmt: skip
"""What a config.json may say, and more."""
CLASSES = (
    "LlamaForCausalLM", "LlamaForCausalLMEagle", "Eagle3LlamaForCausalLM", "DFlashDraftModel", "MtpHeads", "MiMoMTP",
    "Gemma4AssistantForCausalLM", "MedusaModel", "GPT2LMHeadModel",
)  # fmt: skip
"""What a config.json may call its model."""
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
    blocks = {"": whole["properties"], "model": whole["$defs"]["ModelBlock"]["properties"], "options": options}
    return {name: {key: _flat(said) for key, said in keys.items()} for name, keys in blocks.items()}


def _flat(said: dict[str, Any]) -> dict[str, Any]:
    """One key's schema without the alternative null."""
    some = [option for option in said.get("anyOf", ()) if option.get("type") != "null"]
    return {**said, **some[0]} if len(some) == 1 else said


def value(rng: random.Random, said: dict[str, Any]) -> Any:
    """A value for a key: at its bounds, one of its words, or anything at all."""
    pool: list[Any] = []
    kind = said.get("type")
    if kind == "integer":
        bounds = [said.get("minimum", 0), said.get("maximum", 1 << 20)]
        pool = [edge + by for edge in bounds for by in (-1, 0, 1)] + [1 << rng.randrange(24), rng.randint(1, 16)]
        pool += [(1 << rng.randrange(1, 24)) + rng.choice([-1, 1]), float(rng.randint(1, 9)), str(rng.randint(1, 9))]
    elif "enum" in said or "const" in said:
        words = said.get("enum", [said.get("const")])
        pool = [*words, rng.choice(words).upper(), rng.choice(words)[:-1], misspelt(rng, str(rng.choice(words)))]
    elif kind == "boolean":
        pool = [True, False, "yes", "no", "on", 0, 1]
    elif kind == "array":
        item = {**said.get("items", {})}
        sizes = (0, 1, 2, 3, said.get("maxItems", 8), said.get("maxItems", 8) + 1)
        pool = [
            [value(rng, item) for _ in range(rng.choice(sizes))],
            sorted(rng.sample(range(1, 20), rng.randint(1, 5))),
        ]
    elif kind == "string":
        pool = ["a", "m", "eagle", "x" * said.get("maxLength", 63), "x" * (said.get("maxLength", 63) + 1)]
    if not pool or rng.random() < 0.25:
        return rng.choice(ODD)
    allowed = [one for one in pool if not breaks(said, one)]
    return rng.choice(allowed if allowed and rng.random() < 0.5 else pool)


def breaks(said: dict[str, Any], given: Any) -> bool:
    """Whether the schema alone forbids a value: kinds and bounds of numbers, flags and words."""
    kind = said.get("type")
    if kind == "integer":
        wrong = type(given) is not int
        return wrong or given < said.get("minimum", given) or given > said.get("maximum", given)
    if kind == "boolean":
        return type(given) is not bool
    if "enum" in said and kind == "string":
        return given not in said["enum"] and not (given is True and "true" in said["enum"])
    return False


def misspelt(rng: random.Random, word: str) -> str:
    """A word with a letter changed, doubled, left out or swapped."""
    if not word:
        return "x"
    at = rng.randrange(len(word))
    return rng.choice(
        [word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word[:at] + "x" + word[at + 1 :], word[::-1]]
    )


# --- kinds of cases ---------------------------------------------------------------------------------------------------


def whole(rng: random.Random) -> str:
    """A configuration that should be legal, compiled."""
    return judge(to_text(rng, legal.draw(rng, small=rng.random() < 0.7)), 1.0, rng)


def changed(rng: random.Random) -> str:
    """A legal one in which values are replaced, left out, misspelt or moved."""
    keys = legal.draw(rng, small=True)
    broken = False
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        block, name = _block(rng, keys)
        known = schema()[name]
        key = rng.choice([*known, *block])
        match rng.randrange(8):
            case 0:
                block.pop(key, None)
            case 1:
                block[misspelt(rng, key)] = block.pop(key, value(rng, known.get(key, {})))
            case 2:
                block[rng.choice([other for of in schema().values() for other in of])] = rng.choice(ODD)
            case _:
                if not isinstance(block.get(key), dict):
                    block[key] = value(rng, known.get(key, {}))
    for block, name in _blocks(keys):
        for key, given in block.items():
            if key in schema()[name] and given is not None and key not in ("num_steps", "options", "target", "draft"):
                broken |= breaks(schema()[name][key], given)
    return judge(to_text(rng, keys), COMPILED, rng, legal=not broken)


def _blocks(keys: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    found = [(keys, "")]
    for name, kind in (("target", "model"), ("draft", "model"), ("options", "options")):
        if isinstance(keys.get(name), dict):
            found.append((keys[name], kind))
    return found


def _block(rng: random.Random, keys: dict[str, Any]) -> tuple[dict[str, Any], str]:
    return rng.choice([_blocks(keys)[0], *_blocks(keys)])


def text(rng: random.Random) -> str:
    """The text of a legal one, damaged."""
    lines = to_text(rng, legal.draw(rng, small=True)).splitlines()
    for _ in range(rng.randint(1, 6)):
        _damage(rng, lines)
    return judge("\n".join(lines), COMPILED, rng)


def _damage(rng: random.Random, lines: list[str]) -> None:
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


def document(rng: random.Random) -> str:
    """Keys of the schema with values of any shape."""

    def any_value(depth: int) -> Any:
        if depth and rng.random() < 0.4:
            keys = [*schema()[""], *schema()["model"], "nonsense", ""]
            return {rng.choice(keys): any_value(depth - 1) for _ in range(rng.randint(0, 5))}
        if depth and rng.random() < 0.3:
            return [any_value(depth - 1) for _ in range(rng.randint(0, 4))]
        return rng.choice(ODD)

    found = {key: any_value(rng.randint(0, 4)) for key in rng.sample([*schema()[""], "x"], rng.randint(0, 12))}
    return judge(to_text(rng, found) if rng.random() < 0.9 else json.dumps(any_value(3)), COMPILED, rng)


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


def model_directories(rng: random.Random) -> str:
    """Directories whose config.json says anything."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    with tempfile.TemporaryDirectory() as folder:
        _directories(rng, Path(folder), [0, 1, 1, 2, 4])
        keys = legal.draw(rng, algorithm=rng.choice(algorithms.names()), small=True)
        for side in ("target", "draft"):
            if side in keys:
                kept = rng.sample(list(keys[side]), rng.choice([0, 0, 1, 3]))
                where = rng.choice(["m", "d", "m", "d", "m", "no_such", ".", "m/config.json", "/dev/null", "m\x00", ""])
                keys[side] = {key: keys[side][key] for key in kept} | {"model": where}
        path = Path(folder) / "c.yaml"
        made = to_text(rng, keys)
        return outcome(lambda: load_text(made, path, algorithms.names(), algorithms.needs), COMPILED, rng)


def _directories(rng: random.Random, folder: Path, changes: list[int]) -> None:
    """Two model directories, ``m`` and ``d``, with so many keys that say anything, and fewer that are missing."""
    said = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64,
            "vocab_size": 2048, "dtype": "bfloat16"}  # fmt: skip
    for side in ("m", "d"):
        (folder / side).mkdir()
        facts = {"model_type": rng.choice(["llama", "qwen3_next", "deepseek_v3", "gemma3", "mamba", "no_such", "gpt2"])}
        facts |= said | {rng.choice(MODEL_KEYS): _fact(rng, 2) for _ in range(rng.choice(changes))}
        if rng.random() < 0.5:
            facts |= {"architectures": [rng.choice(CLASSES)], "num_hidden_layers": rng.choice([1, 3, 4])}
        for key in rng.sample(list(facts), rng.choice(changes) // 2):
            del facts[key]
        made = json.dumps(rng.choice([facts, facts, facts, facts, [facts], None, 3]))
        if rng.random() < 0.1:
            made = rng.choice(
                ["", "{", made[: len(made) // 2], "[" * 5000, "\x00", made * 2, '{"a": NaN}', "\ufeff" + made]
            )
        place = folder / side / "config.json"
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


def _fact(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.2:
        return {rng.choice(MODEL_KEYS): _fact(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    odd = rng.choice([["full_attention", "sliding_attention"] * 2, ["mamba"] * 4, ["linear_attention",
        "full_attention"] * 2,
                      "M*-M", 256, 4, "float16", {"rope_type": "x"}, {"kv_cache_scheme": {"type": [],
                      "num_bits": {}}}])  # fmt: skip
    return rng.choice([rng.choice(ODD), odd])


def tuning_files(rng: random.Random) -> str:
    """Choices for launches, most of which a program of small vocabularies has; keys and lines that it has not."""
    keys = legal.draw(rng, small=True) | {"tuning": "t.yaml", "archs": ["sm_90"]}
    launches: list[dict[str, Any]] = []
    for _ in range(rng.randint(0, 3)):
        one: dict[str, Any] = {"launch": rng.choice(["prepare_rows", "verify_argmax", "verify_draw", "compact", "x"])}
        if rng.random() < 0.5:
            one["warps"] = rng.choice([1, 2, 4, 8, 16, 32, *ODD])
        if rng.random() < 0.3:
            one["tile"] = rng.choice([512, 1024, 3, *ODD])
        if rng.random() < 0.3:
            one["split"] = rng.choice([{bucket: rng.randint(1, 3)} for bucket in keys.get("buckets", [1])] + [*ODD])
        launches.append(one)
    said: dict[str, Any] = {"gpu": "g", "arch": "sm_90", "specc": "0", "triton": "0", "launches": launches}
    if rng.random() < 0.2:
        said[rng.choice([*said, "x"])] = rng.choice(ODD)
    lines = to_text(rng, said).splitlines()
    if rng.random() < 0.3:
        _damage(rng, lines)
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
        block, name = _block(rng, keys)
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
    whole: 4, changed: 56, text: 18, document: 10, deep: 1, files: 5, model_directories: 6, command: 1, first: 3,
    tuning_files: 6,
}  # fmt: skip


def case(seed: str, rng: random.Random) -> str:
    """One configuration."""
    legal.install_plugin()
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return kind(rng)


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
