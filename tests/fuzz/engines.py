"""What a serving engine gives an adapter: settings of a running server, and what another one has prefilled.

A setting does what docs/sglang.md says of it, or nothing. What was handed over is taken if a step can go on from it,
and told by a sentence otherwise; nothing raises, for that would fail requests of others.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import logging
import math
import random
from types import SimpleNamespace
from typing import Any

import torch
from fakes import sglang_server as _modules  # noqa: F401 (SGLang has its classes)
from fakes.nested import several
from fakes.sglang_modules import SRT
from fakes.sglang_settings import validated

import specc.runtime
from specc.engines._shapes import Shapes
from specc.runtime.plan.shape import Shape

from .config_texts import ODD
from .outcome import RIGHT, expect

ADAPTER = "specc.engines.sglang"
CHAINS = tuple(Shape(steps, 1, steps + 1) for steps in range(5))
TREES = (Shape(5, 4, 8), Shape(2, 2, 5), Shape(3, 3, 9))
KNOWN = "pp_max_micro_batch_size"
"""A setting of SGLang's own."""
VALUES = (0, 1, 1.0, 0.0, -0.0, True, False, 2, 3, -1, math.nan, math.inf, 10**400, "0", "1", "3", "on", "off", "auto",
          "5x4x8", "", " 1", None, [], {}, (0,), {1}, b"1")  # fmt: skip


@functools.cache
def adapter(module: str) -> Any:
    """A module of the adapter, on SGLang's stand-ins; elsewhere in this process it stays what it was."""
    with SRT.installed(ADAPTER):
        return importlib.import_module(f"{ADAPTER}.{module}")


# --- settings ---------------------------------------------------------------------------------------------------------


class Steps:
    """Steps of a program, as far as settings reach."""

    name = "program"

    def __init__(self, shapes: list[Shape]) -> None:
        times = {shape: {1: 1.0 + shape.num_steps} for shape in shapes}
        self.shapes = Shapes(specc.runtime, dict.fromkeys(shapes, (1,)), lambda: times, lambda same: same)
        self.on = True

    def switch(self, on: bool) -> None:
        """See `Steps.switch` of the adapter."""
        self.on = on


def settings(rng: random.Random) -> str:
    """One request, posted or given in the process of the server."""
    shapes = rng.sample([*CHAINS, *TREES], rng.randint(1, 4))
    steps = Steps(shapes)
    names = [str(shape) for shape in shapes]
    steps.on = rng.random() < 0.7
    before = steps.on, steps.shapes.name
    given = _settings(rng, names)
    if posted := rng.random() < 0.6:
        given = validated(json.loads(json.dumps(given, default=str)))
        if given is None:
            return "SGLang refuses it"
    updated = _updated(steps, given)
    word, on = meaning(given, names), (steps.on, steps.shapes.name)
    if word is None:
        expect(not updated and on == before, f"{given!r:.200} is taken of {names}: {on}")
        return "refused"
    expect(updated, f"{given!r:.200} is refused of {names}")
    named = before[1] if word in ("on", "off") else names[0] if len(names) == 1 else word
    expect(on == (word != "off", named), f"{given!r:.200} of {names}: {on}, not {word}")
    return f"{RIGHT} ({'posted' if posted else 'given'})"


def meaning(given: dict[Any, Any], names: list[str]) -> str | None:
    """The word that settings are for, by the table of docs/sglang.md; None where they are refused."""
    words = {"on", "off", "auto", *names}
    own = {key: value for key, value in given.items() if str(key) == "specc" or str(key).startswith("specc:")}
    if len(own) != 1 or not given.keys() - own.keys() <= {KNOWN}:
        return None
    [(key, value)] = own.items()
    number = value if type(value) in (int, float, bool) else None
    if key != "specc":
        return key[6:] if number == 1 and key[6:] in words else None
    if number in (0, 1):
        return None if str(int(number)) in names else ("off", "on")[int(number)]
    return value if type(value) is str and value in words else None


def _settings(rng: random.Random, names: list[str]) -> dict[Any, Any]:
    """Settings that ask for something, or for nothing that there is."""
    word = rng.choice([*names * 3, *["on", "off", "auto"] * 3, "7", "9x9x9", "", "ON", "specc", "0", "1", "2"])
    value = rng.choice([*VALUES, rng.choice(ODD)])
    given = rng.choice([{f"specc:{word}": value}, *[{f"specc:{word}": 1}] * 2, {"specc": word}, {"specc": value}])
    if rng.random() < 0.2:
        given |= rng.choice([{KNOWN: 3}, {"unknown": 1}, {"specc": 1}, {"specc:off": 1}, {3: 1}, {"speccy": 1}])
    return given


def _updated(steps: Steps, given: dict[Any, Any]) -> bool:
    """What the hooked `set_internal_state` says."""
    controller = SimpleNamespace(scheduler=SimpleNamespace(draft_worker=SimpleNamespace(steps=steps)))

    def original(_: Any, request: Any) -> Any:
        return SimpleNamespace(updated=request.server_args.keys() <= {KNOWN})

    logger, heard = logging.getLogger(f"{ADAPTER}.workers.internal_state"), io.StringIO()
    handler = logging.StreamHandler(heard)
    logger.addHandler(handler)
    try:
        with SRT.installed():
            request = importlib.import_module("sglang.srt.managers.io_struct").SetInternalStateReq(server_args=given)
            updated: bool = adapter("workers.internal_state").switch(original, controller, request).updated
    finally:
        logger.removeHandler(handler)
    expect(heard.getvalue().count("\n") <= 1 and len(heard.getvalue()) < 600, f"the log: {heard.getvalue()[:300]!r}")
    return updated


# --- what another server prefilled ------------------------------------------------------------------------------------

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64,
)  # fmt: skip
NUMBERS = (0.0, 1.0, 0.5, -0.5, 1.5, math.nan, math.inf, -math.inf, 3.0, 19.0, 20.0, -1.0, 1e200)


def handed_over(rng: random.Random) -> str:
    """What came of one request: its drafts, their chances and hidden states, some of them anything."""
    topk, width, scored = rng.randint(1, 4), rng.randint(1, 5), rng.choice([1, 20])
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    came: list[Any] = [
        torch.tensor([rng.randrange(scored) for _ in range(topk + rng.randrange(3))]),
        torch.rand(topk + rng.randrange(3)),
        torch.rand(width).to(dtype),
    ]
    for _ in range(rng.choice([0, 1, 1, 2])):
        at = rng.randrange(3)
        came[at] = _other(rng, came[at])
    found = adapter("handover").lacking(*came, topk=topk, width=width, dtype=dtype, scored=scored)
    if found is not None:
        expect(type(found) is str and 10 < len(found) < 1000 and "\n" not in found, f"it says {found!r:.200}")
        return "told"
    drafts, chances, hidden = (value.tolist() for value in came)
    expect(all(type(draft) is int and 0 <= draft < scored for draft in drafts[:topk]), f"drafts {drafts}")
    expect(len(drafts) >= topk <= len(chances) and all(0 <= chance <= 1 for chance in chances[:topk]), f"{chances}")
    kept = came[2].to(dtype).tolist()
    expect(len(hidden) == width and all(map(math.isfinite, kept)), f"hidden states {hidden}")
    return RIGHT


def _other(rng: random.Random, value: Any) -> Any:
    """Something else in the place of a tensor, or a tensor of another form."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_meta or value.is_nested:
        value = torch.rand(3)
    value = value if value.numel() else torch.rand(3)
    match rng.randrange(7):
        case 0:
            return rng.choice([None, 3, "x", [1, 2], (), {}, b"12", torch.tensor(1), torch.zeros(0)])
        case 1:
            return value[None] if rng.random() < 0.5 else value.reshape(-1, 1)
        case 2:
            return rng.choice([value.to("meta"), value.to_sparse(), several(value, value)])
        case 3:
            return value.real.to(rng.choice(DTYPES))
        case 4:
            return value.reshape(-1)[1:]
        case _:
            other, number = value.clone(), torch.tensor(rng.choice(NUMBERS), dtype=torch.float64)
            other.view(-1)[rng.randrange(other.numel())] = number.to(other.dtype)
            return other


KINDS = {settings: 2, handed_over: 3}


def case(seed: str, rng: random.Random) -> str:
    """One thing that is given."""
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    return f"{kind.__name__}: {kind(rng)}"
