"""Inputs whose size only the engine knows: the prompts of a prefill, and tables that are bound once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from fakes.memory import scattered
from fakes.models import target_next
from fakes.plans import LONGEST, SHORTEST, WINDOW, chain_plan, lookup_plan, program_of
from fakes.tables import tame_models
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.backends.cuda import argument_value
from specc.runtime.batch import Batch
from specc.runtime.entry.frame import Frame
from specc.runtime.errors import BatchError, BindError, PlanError
from specc.runtime.memory.tables import TableGuard, check_tables
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.nodes import Argument
from specc.runtime.plan.plan import Input
from specc.runtime.step import Step

CPU = torch.device("cpu")
PROMPTS = {3: [4, 9, 2], 1: [7, 7, 7, 7, 7], 6: [5, 5, 8, 1, 2] * 14}


TARGET = tame_models(read_plan(lookup_plan()))["target"]


def make_engine(prompts: dict[int, list[int]]) -> Engine:
    """An engine for 8 pool rows of 128 positions."""
    engine = Engine.of_plan(read_plan(lookup_plan()), scattered(8, 128))
    engine.prompts |= prompts
    return engine


def bind(plan: dict[str, Any], engine: Engine, tables: dict[str, Tensor] | None = None) -> Step:
    return Step(read_plan(plan), ReferenceBackend(), CPU, engine, engine.table, tables=tables, poison=0xFF)


def corpus(tokens: Sequence[int] = (1, 2, 3)) -> Tensor:
    return torch.tensor(tokens, dtype=torch.int32)


def continuation(prompt: list[int], count: int) -> list[int]:
    """The target's own text."""
    text = list(prompt)
    for _ in range(count):
        text.append(target_next(TARGET, text))
    return text


def drafts(text: list[int], known: list[int], steps: int) -> list[int]:
    """What follows the best earlier place: the most equal last tokens, the text before the corpus, then the last."""
    own, best = text[-WINDOW:], (0, False, 0)
    for of_text, source in ((False, known), (True, own)):
        for end in range(len(source) - 1):
            longest = min(LONGEST, end + 1, len(own))
            equal = next((i for i in range(longest) if source[end - i] != own[-1 - i]), longest)
            best = max(best, (equal, of_text, end))
    equal, of_text, end = best
    following: list[int] = []
    for at in range(end + 1, end + 1 + steps):
        source = own + following if of_text else known
        following.append(source[at] if equal >= SHORTEST and at < len(source) else 0)
    return following


def step_of(text: list[int], known: list[int], steps: int) -> list[int]:
    """What one decode step emits, the bonus last; it is appended to the text."""
    emitted: list[int] = []
    for token in [*drafts(text, known, steps), None]:
        emitted.append(target_next(TARGET, text + emitted))
        if token != emitted[-1]:
            break
    text += emitted
    return emitted


@pytest.mark.parametrize("known", ["nothing", "words", "the text itself"])
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_prompts_and_corpus_reach_the_launches(steps: int, as_tensor: bool, known: str) -> None:
    corpus_tokens = {"nothing": [], "words": [7, -1, 2, 5] * 5, "the text itself": continuation(PROMPTS[3], 40)}[known]
    engine = make_engine(PROMPTS)
    step = bind(lookup_plan(steps=steps), engine, {"corpus": corpus(corpus_tokens)})
    flat = [token for prompt in PROMPTS.values() for token in prompt]
    rows, lengths = list(PROMPTS), [len(prompt) for prompt in PROMPTS.values()]
    result = step.prefill(Batch(rows, lengths, torch.tensor(flat) if as_tensor else flat)).to_host()
    texts = {row: continuation(prompt, 1) for row, prompt in PROMPTS.items()}
    assert result.bonus == [text[-1] for text in texts.values()]
    accepted = set[int]()
    for turn in range(7):
        order = rows if turn % 2 else rows[::-1]
        decoded = step.decode(Batch(order), at_least=int(turn % 3 == 0)).to_host()
        for index, row in enumerate(order):
            emitted = step_of(texts[row], corpus_tokens, steps)
            assert decoded.tokens(index) == emitted
            accepted.add(len(emitted))
    assert max(accepted) == steps + 1 or known != "the text itself"


def test_a_table_is_read_where_it_is() -> None:
    engine = make_engine(PROMPTS)
    table = corpus([0] * 40)
    step = bind(lookup_plan(), engine, {"corpus": table})
    step.prefill(Batch([3], [3], PROMPTS[3]))
    text = continuation(PROMPTS[3], 1)
    table.copy_(corpus(continuation(PROMPTS[3], 37)))
    assert step.decode(Batch([3])).to_host().tokens(0) == step_of(text, table.tolist(), 3)
    assert len(text) == len(PROMPTS[3]) + 5


def test_kernels_get_a_table_with_its_size() -> None:
    engine, table = make_engine(PROMPTS), corpus(range(7))
    step = bind(lookup_plan(), engine, {"corpus": table})
    frame = Frame(step._plan, step._arena, step._pools, engine.table, 1, inputs={"corpus": table})
    assert argument_value(Argument("corpus_ptr", "input", "corpus"), frame) is table
    assert argument_value(Argument("corpus_size", "size", "corpus"), frame) == 7
    assert argument_value(Argument("columns", "size", "req_to_token", 1), frame) == 128


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, r"has no 'corpus': the program reads i32\[M\] there"),
        ({"corpus": corpus(), "words": corpus()}, "has 'words'; the program reads the tables corpus"),
        ({"corpus": [1, 2]}, "'corpus' is a list, not a tensor"),
        ({"corpus": corpus().long()}, r"is torch.int64, the program reads torch.int32"),
        ({"corpus": corpus()[None]}, r"has shape \[1, 3\], the program reads \[M\]"),
        ({"corpus": corpus(range(6))[::2]}, r"has strides \[2\]"),
        ({"corpus": corpus().to("meta")}, "is on meta, the program on cpu"),
        ({"corpus": corpus([1]).expand((1 << 30) + 1)}, "has 1073741825 elements, more than 1073741824"),
    ],
)
def test_tables_that_do_not_fit(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        bind(lookup_plan(), make_engine(PROMPTS), tables)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([0, 7, 31], None),
        ([31, 7, 0], "'map' has the entry 7 behind 31"),
        ([0, 7, 32], r"'map' has the entry 32, the program reads 0\.\.31"),
        ([0, -1, 7], "'map' has the entry -1"),
        ([0, 7, 7], "'map' has the entry 7 behind 7, the program reads entries that ascend"),
        ([0, 7, 3], "'map' has the entry 3 behind 7, the program reads entries that ascend"),
        ([0, 7], r"'map' has shape \[2\]"),
    ],
)
def test_entries_of_a_map(entries: list[int], message: str | None) -> None:
    """A map of 3 of 32 tokens is read once: tokens that ascend, so that of equal logits the lowest is drafted."""
    plan = lookup_plan(steps=3, vocab=32)
    plan["inputs"].append({"name": "map", "dtype": "i64", "axes": ["S"], "owner": "engine", "limit": "V"})
    tables = {"corpus": corpus(), "map": torch.tensor(entries)}
    if message is None:
        bind(plan, make_engine(PROMPTS), tables)
        return
    with pytest.raises(BindError, match=message):
        bind(plan, make_engine(PROMPTS), tables)


@pytest.mark.parametrize("change", [{"limit": "Q"}, {"dtype": "f32"}, {"axes": ["S", "A"]}])
def test_a_plan_whose_map_cannot_be_one(change: dict[str, Any]) -> None:
    plan = lookup_plan()
    table = {"name": "map", "dtype": "i64", "axes": ["S"], "owner": "engine", "limit": "V"}
    plan["inputs"].append(table | change)
    with pytest.raises(PlanError, match="table 'map' cannot have entries of the axis"):
        read_plan(plan)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((5, 4), (5,)), None),
        (((5, 3), (5,)), r"'rows' has shape \[5, 3\], the program reads \[M, A\], here \[5, 4\]"),
        (((5, 4), (6,)), r"'corpus' has shape \[6\], the program reads \[M\], here \[5\]"),
    ],
)
def test_axes_of_tables_agree(shapes: tuple[tuple[int, ...], ...], message: str | None) -> None:
    plan = lookup_plan()
    plan["inputs"].insert(0, {"name": "rows", "dtype": "f32", "axes": ["M", "A"], "owner": "engine"})
    tables = {"rows": torch.zeros(shapes[0]), "corpus": torch.zeros(shapes[1], dtype=torch.int32)}
    if message is None:
        bind(plan, make_engine(PROMPTS), tables)
        return
    with pytest.raises(BindError, match=message):
        bind(plan, make_engine(PROMPTS), tables)


def test_a_program_without_tables_takes_none() -> None:
    engine = make_engine(PROMPTS)
    with pytest.raises(BindError, match="reads the tables none"):
        program_of(read_plan(chain_plan())).bind(engine, engine.table, tables={"corpus": corpus()})
    assert read_plan(lookup_plan(corpus=False)).tables() == {}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (None, "prefill needs the batch's prompt_tokens"),
        ([4, 9], "2 prompt_tokens for prompts of 3 tokens"),
        ([4, 9, 2.0], "prompt_tokens must be integers"),
        (torch.tensor([4, 9, 2, 1]), "4 prompt_tokens for prompts of 3 tokens"),
        (torch.tensor([4, 9, 2], dtype=torch.int32), "prompt_tokens is torch.int32"),
        (torch.tensor([[4, 9, 2]]), "prompt_tokens has shape"),
        (torch.tensor([4, 0, 9, 0, 2, 0])[::2], "prompt_tokens has strides"),
        (torch.tensor([4, 9, 2], device="meta"), "prompt_tokens is on meta"),
    ],
)
def test_prompts_that_do_not_fit(tokens: object, message: str) -> None:
    step = bind(lookup_plan(corpus=False), make_engine(PROMPTS))
    given: Any = tokens
    with pytest.raises(BatchError, match=message):
        step.prefill(Batch([3], [3], given))


def test_prompts_are_given_only_where_they_are_read() -> None:
    step = bind(lookup_plan(corpus=False), make_engine(PROMPTS))
    step.prefill(Batch([3], [3], PROMPTS[3]))
    with pytest.raises(BatchError, match="step does not read the batch's prompt_tokens"):
        step.decode(Batch([3], prompt_tokens=PROMPTS[3]))
    engine = make_engine(PROMPTS)
    chain = bind(chain_plan(), engine)
    with pytest.raises(BatchError, match="prefill does not read the batch's prompt_tokens"):
        chain.prefill(Batch([3], [3], PROMPTS[3]))


def test_an_empty_prefill_reads_nothing() -> None:
    step = bind(lookup_plan(corpus=False), make_engine({}))
    assert step.prefill(Batch([], [], [])).to_host().bonus == []


@pytest.mark.parametrize(
    "change", [lambda t: t.set_(t.clone()), lambda t: t.resize_(2), lambda t: t.as_strided_((3,), (0,))]
)
def test_the_guard_watches_every_table(change: Callable[[Tensor], Tensor]) -> None:
    tables = {"req_to_token": torch.zeros(8, 9, dtype=torch.int32), "corpus": corpus()}
    guard = TableGuard(tables)
    guard.check()
    tables["corpus"].add_(1)
    guard.check()
    change(tables["corpus"])
    with pytest.raises(BindError, match="corpus has moved or changed its layout"):
        guard.check()


def test_the_ragged_axis_is_for_prompts() -> None:
    plan = lookup_plan()
    plan["inputs"].append({"name": "weights", "dtype": "f32", "axes": ["T"], "owner": "engine"})
    with pytest.raises(PlanError, match="weights"):
        read_plan(plan)


def test_the_guard_watches_how_many_columns_a_table_has() -> None:
    """Kernels of a graph hold the number: fewer columns in the same memory leave less room."""
    table = torch.zeros(8, 9, dtype=torch.int32)
    guard = TableGuard({"req_to_token": table})
    table.as_strided_((8, 7), (9, 1))
    with pytest.raises(BindError, match="req_to_token has moved or changed its layout"):
        guard.check()


@pytest.mark.parametrize(("name", "fault"), [("draft_head", ""), ("corpus", "has 1271398400 elements, more than")])
def test_heads_alone_have_more_entries_than_32_bits_count(name: str, fault: str) -> None:
    """Kernels number the rows of other tables in 32 bits. Heads of 248,320 tokens are larger than that."""
    place, wanted = torch.device("meta"), {name: Input(name, "bf16", ("V", "D"), "engine")}
    plan: Any = SimpleNamespace(tables=lambda: wanted, dims={})
    given = {name: torch.empty(248_320, 5120, dtype=torch.bfloat16, device=place)}
    with pytest.raises(BindError, match=fault) if fault else contextlib.nullcontext():
        assert check_tables(plan, place, given, 1) == given
