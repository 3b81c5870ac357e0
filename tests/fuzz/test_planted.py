"""The attack finds what it is for: each fault, planted, is a failure within a few cases."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.cli import inspect
from specc.compiler.codegen import aot
from specc.compiler.config import models
from specc.compiler.config.models import config_json
from specc.compiler.ir.text import parser
from specc.compiler.passes import plan_memory
from specc.compiler.support.diagnostics import Diagnostics
from specc.compiler.support.files import cachedir, weights
from specc.runtime import bound as bound_step
from specc.runtime.entry import external
from specc.runtime.plan import token_map
from specc.runtime.plan.files import manifest
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.rotated import RotatedStep
from specc.runtime.semantics import convention as semantics
from specc.runtime.semantics import reference, tree, vocab
from specc.runtime.state import limits
from specc.runtime.state.torn import Torn
from specc.runtime.state.transfer import RecordLayout

from . import models as attacked
from . import runner
from .generators import GENERATORS, Generator
from .test_fuzz import SEED

Patch = Callable[[pytest.MonkeyPatch], None]


def failures(name: str, cases: int, seed: str = SEED) -> dict[int, str]:
    """What fails of the first cases of a seed, up to the first failure."""
    tally = runner.Tally()
    for number in range(cases):
        runner.attempt(name, seed, number, tally)
        if tally.failures:
            break
    return tally.failures


def op(*names: str, wrong: Callable[[Any, Any], Any]) -> Patch:
    """Ops whose results ``wrong`` makes of the operands and the right results."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in names:
            right = reference.OPS[name]
            monkeypatch.setitem(
                reference.OPS, name, lambda operands, *rest, right=right: wrong(operands, right(operands, *rest))
            )

    return patch


def store(name: str, wrong: Callable[[Tensor, Tensor], Tensor]) -> Patch:
    """A store that writes what ``wrong`` makes of the right rows and those that were there."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = reference.STORES[name]
        monkeypatch.setitem(reference.STORES, name, lambda given, pool: wrong(right(given, pool), pool[given[0]]))

    return patch


def last_of_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Argmax gives the highest index of equal values."""
    right = vocab.vocab_argmax

    def wrong(operands: Any, attrs: Any, dims: Any) -> Any:
        logits, rows = operands
        index, bad = right((logits.flip(-1), rows), attrs, dims)
        return logits.shape[-1] - 1 - index, bad

    monkeypatch.setattr(vocab, "vocab_argmax", wrong)
    monkeypatch.setitem(reference.OPS, "vocab.argmax", wrong)


def rank_from_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal path scores put the highest candidate first."""

    def wrong(scores: Tensor) -> Tensor:
        return scores.shape[-1] - 1 - semantics.ranking(scores.flip(-1))

    monkeypatch.setattr(tree, "ranking", wrong)


def moves_nothing(name: str) -> Patch:
    """KV rows that stay where they are."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(reference.MOVES, name, (reference.MOVES[name][0], lambda *_: None))

    return patch


def lost_noise(operands: Any, results: Any) -> Any:
    """Large logits swallow the noise where the temperature is low: the first of the largest."""
    logits, _, _, scales, *_ = operands
    return torch.where(scales > 1e4, logits.nan_to_num(nan=-torch.inf).argmax(-1), results[0]).to(
        results[0].dtype
    ), results[1]


SLOTS = ("kv.verify_slots", "kv.extend_slots", "kv.slots")
STEPS: dict[str, Patch] = {
    "ties": last_of_ties,
    "ranks": rank_from_behind,
    "slots": op(*SLOTS, wrong=lambda _, results: tuple(slots.roll(1, -1) for slots in results)),
    "positions": op("kv.positions", wrong=lambda _, results: tuple(positions + 1 for positions in results)),
    "publish": store("relay.publish", lambda _, before: before),
    "store": store("carry.store", lambda results, _: results.roll(1, 0)),
    "append": store("carry.append", lambda _, before: before),
    "health": op("health.raise", wrong=lambda operands, _: (operands[0],)),
    "bits": op("tree.mask", wrong=lambda _, results: (results[0] | torch.ones_like(results[0]),)),
    "seen": op("tree.seen_slots", wrong=lambda _, results: (results[0].roll(1, 1), results[1])),
    "counted": op("tree.seen_slots", wrong=lambda _, results: (results[0], results[1].clamp(max=1))),
    "moves": moves_nothing("kv.move"),
    "tails": moves_nothing("kv.duplicate_tail"),
    "keys": op("sample.keys", wrong=lambda _, results: (results[0] + (1 << 32), results[1])),
    "scales": op("sample.keys", wrong=lambda _, results: (results[0], results[1] * 1.5)),
    "noise": op(
        "sample.draw", wrong=lambda operands, results: (operands[0].argmax(-1).to(results[0].dtype), results[1])
    ),
    "masks": op("sample.allow", wrong=lambda operands, _: (operands[0].float(),)),
    "filters": op("sample.top_k", "sample.top_p", wrong=lambda _, results: (results[0] - 3,)),
    "penalties": op("sample.penalize", "sample.penalize_nodes", wrong=lambda operands, _: (operands[0].float(),)),
    "biases": op("sample.bias", wrong=lambda operands, _: (operands[0].float(),)),
    "counts": store("carry.count", lambda _, before: before),
    "least": op("sample.min_p", wrong=lambda _, results: (results[0] - 3,)),
    "apart": lambda monkeypatch: monkeypatch.setattr(bound_step, "check_apart", lambda *_: None),
    "lost": op("sample.draw", wrong=lost_noise),
    "lengths": op("commit.lengths", wrong=lambda _, results: (results[0] + 1, results[1])),
}


@pytest.mark.parametrize("fault", STEPS)
def test_steps(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    STEPS[fault](monkeypatch)
    assert failures("steps", 60)


SHAPES: dict[str, Patch] = {
    "masses": op("sample.mass", wrong=lambda _, results: (results[0] * results[0].new_tensor([1.0, 1.0, 0.9]),)),
    "left": op("sample.residual", wrong=lambda operands, results: (operands[5], results[1])),
    "sums": op("sample.residual", wrong=lambda _, results: (results[0], results[1] * 0)),
    "weights": op("sample.weigh", wrong=lambda _, results: (results[0].roll(1, 0),)),
}


@pytest.mark.parametrize("fault", SHAPES)
def test_steps_of_several_shapes(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SHAPES[fault](monkeypatch)
    assert failures("shapes", 40)


def taken(owner: Any, name: str, wrong: Any) -> Patch:
    """A check, or what it goes by, that is ``wrong``."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, wrong)


def whole_rows(operands: Any, results: Any) -> Any:
    """Whoever has a length has room, whatever number of blocks is said."""
    _, _, rows, seq_lens = operands
    live = (rows != 0) & (seq_lens >= 0)
    return rows.where(live, 0), seq_lens.where(live, 0), results[2] & ~live


ROTATED: dict[str, Patch] = {
    "places": op("kv.block_slots", wrong=lambda _, results: (results[0].roll(1, -1),)),
    "counts": op("kv.admit_blocks", wrong=whole_rows),
    "tokens": op("carry.convert", wrong=lambda _, results: (results[0].clamp(min=0),)),
    "joined": op("chain.join", wrong=lambda _, results: (results[0].clamp(min=0),)),
    "first": op("chain.first", wrong=lambda _, results: (results[0].roll(1, 0),)),
    "redrafted": store("carry.store", lambda results, before: before if results.dim() == 2 else results),
    "padding": taken(external, "_lies", lambda tensor, row: True),
    "order": taken(RotatedStep, "_check_same", lambda *_: None),
    "halves": taken(RotatedStep, "_check_closed", lambda *_: None),
    "hidden": taken(RotatedStep, "_check_given", lambda *_: None),
    "torn": taken(Torn, "_tear", lambda *_: None),
    "none": taken(limits, "LEAST", {}),
    "apart": taken(bound_step, "check_apart", lambda *_: None),
}


@pytest.mark.parametrize("fault", ROTATED)
def test_rotated_steps(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ROTATED[fault](monkeypatch)
    assert failures("rotated", 60)


def without_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings that point nowhere."""
    right = Diagnostics.error
    monkeypatch.setattr(Diagnostics, "error", lambda self, code, message, *_, **more: right(self, code, message))


def of_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code that nobody knows is a bare ValueError."""
    right = Diagnostics.error
    monkeypatch.setattr(Diagnostics, "error", lambda self, code, *rest, **more: right(self, f"{code}s", *rest, **more))


def one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """All buffers at the start of the arena."""
    monkeypatch.setattr(
        plan_memory, "_place", lambda blocks: {b.name: replace(b, offset=0) for block in blocks for b in block.buffers}
    )


CONFIGS: dict[str, Patch] = {"place": without_place, "code": of_no_code, "memory": one_address}


@pytest.mark.parametrize("fault", CONFIGS)
def test_configs(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CONFIGS[fault](monkeypatch)
    assert failures("configs", 400)


def any_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions multiplied by what is no number."""
    for module in (models, config_json):
        monkeypatch.setattr(module, "ratio", lambda value: value)


def fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of weights that are no whole numbers."""
    monkeypatch.setattr(weights, "_CODES", weights._CODES | {"F32": "f", "F64": "d"})


def as_many_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of more tokens than a vocabulary has, in a file of a few bytes."""
    monkeypatch.setattr(token_map, "MOST_TOKENS", 1 << 25)


MODELS: dict[str, tuple[str, Patch]] = {
    "ratio": ("model_directories", any_ratio),
    "fractions": ("headers", fractions),
    "size": ("token_maps", as_many_as_said),
}


@pytest.mark.parametrize("fault", MODELS)
def test_models(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, plant = MODELS[fault]
    monkeypatch.setattr(attacked, "KINDS", {getattr(attacked, kind): 1})
    monkeypatch.setattr(runner, "CASE_SECONDS", 3)
    plant(monkeypatch)
    assert failures("models", 300)


def test_specir(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that is none is a bare ValueError."""
    monkeypatch.setattr(parser, "DTYPES", {"i32"})
    monkeypatch.setattr(parser._Parser, "line", _careless)
    assert failures("specir", 100)


def _careless(self: Any, number: int, line: str) -> None:
    raise KeyError(line)


def test_artefacts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests that nobody compares."""
    monkeypatch.setattr(Manifest, "verify", lambda self, root: None)
    assert failures("artefacts", 100)


def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wheel says reaches the terminal as it is."""
    monkeypatch.setattr(inspect, "printable", lambda text: text)


def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest may name files outside its package."""
    monkeypatch.setattr(manifest, "_is_inside", lambda file: True)


def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a file of a package waits for who writes it."""
    monkeypatch.setattr(manifest, "_opened", lambda root, file: root.joinpath(file).open("rb"))


WHEELS: dict[str, Patch] = {"raw": raw, "anywhere": anywhere, "pipe": any_file}


@pytest.mark.parametrize("fault", WHEELS)
def test_wheels(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CASE_SECONDS", 2)
    WHEELS[fault](monkeypatch)
    assert failures("wheels", 300)


CACHES: dict[str, Patch] = {
    "entries": taken(aot, "fits", lambda *_: True),
    "folders": taken(cachedir, "fault", lambda _: ""),
}


@pytest.mark.parametrize("fault", CACHES)
def test_caches(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CACHES[fault](monkeypatch)
    assert failures("caches", 100)


def test_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums that nobody compares."""
    monkeypatch.setattr(RecordLayout, "_verify", lambda *_: None)
    assert failures("records", 300)


def test_time_and_memory_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CASE_SECONDS", 0.05)
    monkeypatch.setattr(runner, "CASE_BYTES", 1 << 26)
    monkeypatch.setitem(GENERATORS, "sleeps", Generator(lambda seed, rng: str(time.sleep(5))))
    more_than_ever = runner._peak() + (1 << 27)
    monkeypatch.setitem(GENERATORS, "grows", Generator(lambda seed, rng: str(len(bytearray(b"x") * more_than_ever))))
    assert "longer than" in failures("sleeps", 1)[0]
    monkeypatch.setattr(runner, "CASE_SECONDS", 30)
    assert "grew by" in failures("grows", 1)[0]


def test_a_report_ends_with_reproducers(capsys: pytest.CaptureFixture[str]) -> None:
    tally = runner.Tally(cases=3, seconds=1.0, failures={2: "KeyError: 'x'"})
    tally.outcomes.update({"right": 2, "FAILURE": 1})
    assert runner.report({"steps": tally}, "7", 1) == 1
    assert "python -m tests.fuzz steps --seed 7 --case 2\n  KeyError: 'x'" in capsys.readouterr().out
    assert runner.report({"steps": runner.Tally(cases=1)}, "7", 1) == 0
