"""Servers that `specc bench-serve` asks: what they say of any field, and whatever else comes from one.

It ends in time: with figures that can be true of what was asked, or with a coded finding about the server. Nobody else
is believed either: a server says its own counts, and these are held against the requests.
"""

from __future__ import annotations

import functools
import json
import math
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.openai_server import DRIPPED, Fake, serving
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.support.codes import CODES

from .config_texts import ODD
from .hostile import SAYINGS, raw
from .outcome import LONGEST, expect

FIELDS = (
    "data", "id", "owned_by", "internal_states", "specc", "program", "on", "served", "left", "off", "updated",
    "choices", "delta", "content", "text", "sglext", "spec_tokens_details", "spec_correct_drafts_histogram", "usage",
    "prompt_tokens", "completion_tokens", "logprobs", "tokens", "top_logprobs", "token", "logprob",
)  # fmt: skip
"""Whatever is read of an answer."""
COUNTS = ("completion_tokens", "completion_tokens", "prompt_tokens", "served", "off")
NUMBERS = (0, 1, -1, 7, 2.5, -0.0, 1e300, math.inf, -math.inf, math.nan, 1 << 53, 10**9, 10**400, True, None, "7", "x")
COUNTERS = (
    "", "1", "1.0", "-1", "1.5", "+Inf", "NaN", "1e300", "x", "0x1", "9" * 400, '{position="0"} 1', '{position="x"} 1',
    '{position="-1"} 1', '{position="9999999999"} 1', '{position="\u0663"} 1', "{} 1", "{",
    '{a="' + '\\"' * 900 + '"} 1',
)  # fmt: skip
FAULTS = (
    "cut", "no end", "bad json", "no record", "error", "deep", "no usage", "endless", "html", "redirect", "no models",
    "status", "stuck", "refuses", "no scores", "third token", "metrics", *DRIPPED,
)  # fmt: skip
MOST_TOKENS, REQUESTS, TURNS, SILENCE_S = 6, 2, 3, 0.4


def case(seed: str, rng: random.Random) -> str:
    """One server, or two, measured."""
    with tempfile.TemporaryDirectory() as folder, serving(_server(rng)) as first, serving(_server(rng)) as second:
        prompts = Path(folder) / "p.json"
        prompts.write_text(json.dumps(["one", "two words"]))
        words = ["--url", first.url, *(["--against", second.url] if rng.random() < 0.5 else [])]
        words += ["--prompts", str(prompts), "--max-new-tokens", str(MOST_TOKENS), "--turns", str(TURNS)]
        words += ["--batch", "2", "--requests", str(REQUESTS), "--timeout", str(SILENCE_S), "--format", "json"]
        done = CliRunner().invoke(app, ["bench-serve", *words, *["--chat"] * (rng.random() < 0.3)])
    expect(done.exception is None or isinstance(done.exception, SystemExit), f"it raises {done.exception!r:.300}")
    expect(done.exit_code in (0, 1), f"it ends with {done.exit_code}: {done.output[-300:]!r}")
    expect(raw(done.output) is None, f"it shows {raw(done.output)}: {done.output[:300]!r}")
    expect(len(done.output) <= LONGEST, f"it shows {len(done.output)} characters")
    if done.exit_code:
        codes = re.findall(r'"code": "([a-z/-]+)"', done.output)
        expect(codes and {*codes} <= CODES.keys(), f"it does not say why: {done.output[:300]!r}")
        expect(codes[0].startswith("serve/"), f"a server is told as {codes[0]}: {done.output[:300]!r}")
        return f"diagnostic {codes[0]}"
    _believed(json.loads(done.stdout))
    return "measured"


def _believed(report: dict[str, Any]) -> None:
    """Figures are of what was asked, whatever the server says."""
    [batch] = report["batches"]
    for side in (batch["program"], batch["other"]):
        expect(REQUESTS * TURNS <= side["tokens"] <= REQUESTS * TURNS * MOST_TOKENS, f"{side['tokens']} tokens")
        shares = [*side["by_position"], *([] if side["program_steps"] is None else [side["program_steps"]])]
        expect(all(0 <= share <= 1 for share in shares), f"parts of a whole: {shares}")
        length = side["accept_length"]
        expect(length is None or 1 <= length < 1100, f"an accepted length of {length}")
        times = [side[name] for name in ("tokens_per_s", "first_token_ms", "per_token_ms") if side[name] is not None]
        expect(all(0 <= time < math.inf for time in times), f"times: {times}")
    expect(type(report["model"]) is str and type(report["prompt_tokens"]) in (int, float), f"{report['model']!r:.80}")


def _server(rng: random.Random) -> Fake:
    """One that says something else of a few fields, spoils what it sends, or fails."""
    said = {rng.choice(FIELDS): _said(rng) for _ in range(rng.choice([0, 0, 1, 1, 2]))}
    said |= {rng.choice(COUNTS): rng.choice(NUMBERS) for _ in range(rng.choice([0, 0, 1]))}
    fault = rng.choice(FAULTS) if rng.random() < 0.25 else ""
    engine = rng.choice(["sglang", "sglang", "vllm"])
    if engine == "vllm" and rng.random() < 0.5:
        fault = f"counter{rng.choice(COUNTERS)}"
    spoil: Callable[[bytes], bytes] = functools.partial(_spoilt, rng) if rng.random() < 0.2 else bytes
    apart = {"one": rng.choice([0.1, 0.3])} if rng.random() < 0.3 else {}
    return Fake(engine, program=rng.random() < 0.8, fault=fault, said=said, spoil=spoil, apart=apart)


def _said(rng: random.Random) -> Any:
    """What is said of a field: a number that may be one, text, or anything in lists and objects."""
    match rng.randrange(6):
        case 0 | 1:
            return rng.choice(NUMBERS)
        case 2:
            return rng.choice([text for text in SAYINGS if text < "\ud800" or text > "\udfff"])
        case 3:
            return [rng.choice(NUMBERS) for _ in range(rng.choice([0, 1, 4, 2000, 20_000]))]
        case 4:
            values = [*NUMBERS, [], {}, [{}]]
            return {rng.choice([*FIELDS, "x", ""]): rng.choice(values) for _ in range(rng.randint(0, 3))}
        case _:
            return rng.choice(ODD)


def _spoilt(rng: random.Random, data: bytes) -> bytes:
    """A few bytes of it are others, or more, or none."""
    if rng.random() < 0.7:
        return data
    at = rng.randrange(len(data) + 1)
    other = rng.choice([b"", b"[" * 5000, b"NaN", b"9" * 5000, rng.randbytes(4)])
    return data[:at] + other + data[at + rng.randrange(9) :]
