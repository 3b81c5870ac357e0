"""Targets that keep a recurrent state: their texts are `generate`'s, whatever was accepted and happened between.

One is a gated delta net and one is Mamba-2, each with layers of attention between. What is planted here into the commit
of states shows that a text depends on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from random_hybrids import HYBRIDS
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from specc.cli.main import app
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import ContractError, UnsupportedModelError
from specc.lab.engine.memory.state_pool import CONV, StatePool
from specc.lab.engine.models.drafts import StandaloneDraft
from specc.lab.engine.serving.requests.request import Sampling, StopConditions
from specc.runtime.plan.recurrent.state_tables import POINT
from specc.runtime.plan.shape import Shape
from specc.runtime.semantics.convention import MOVES, Attrs, Dims, Move, Tensors
from specc.runtime.semantics.reference import OPS as SEMANTICS

from .conftest import EXAMPLES, Case, Models, build_wheel
from .conftest import PROMPTS as WRITTEN
from .local_pair import completions_of, handed_over
from .test_rejection import NEW as REJECTED_NEW
from .test_rejection import texts as rejected_texts
from .test_rejection import written
from .test_sampling import NEW, PROMPTS, SAMPLINGS, alone, texts
from .test_shapes import Turns
from .tree_engine import Config, MemoryProgram, base_texts, draft_of, expected, make_engine, plans_of, target_of

CHAIN, TREE = Config("STANDALONE", 1, 3, 4, 1), Config("STANDALONE", 3, 3, 8, 4)
CONFIGS = [
    replace(CHAIN, overlap=True),
    replace(CHAIN, form="select"),
    replace(CHAIN, form="fold"),
    replace(CHAIN, form="point"),
    Config("STANDALONE", 1, 1, 2, 1, form="auto"),
    TREE,
    replace(TREE, overlap=True, form="select"),
    replace(TREE, overlap=True, form="fold"),
    replace(TREE, overlap=True, form="point"),
    Config("EAGLE", 1, 3, 4, 16),
    Config("EAGLE", 2, 3, 7, 1, mask="slots", overlap=True, form="select"),
    Config("EAGLE3", 3, 2, 8, 1, mask="bitpacked"),
    Config("EAGLE", 2, 3, 7, 16, mask="full", form="fold"),
    Config("FROZEN_KV_MTP", 2, 2, 5, 1, mask="full"),
    Config("EAGLE", 2, 3, 7, 16, mask="full", form="point"),
    Config("MULTI_LAYER_EAGLE", 1, 3, 4, 16, overlap=True),
    Config("DFLASH", 1, 3, 4, 1),
    Config("NGRAM", 1, 3, 4, 1, form="auto"),
    Config("NGRAM", 2, 3, 7, 16, mask="bitpacked", overlap=True),
]
MIXED = replace(TREE, others=(Shape(4, 1, 5), Shape(2, 2, 5), Shape(0, 1, 1)))
REQUESTS = [
    base_texts()[0][:12],
    base_texts()[1][:5],
    (*base_texts()[1][:12], 9),
    base_texts()[0][:1],
    base_texts()[2][:33],
]

each_family = pytest.mark.parametrize("family", HYBRIDS)
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.algorithm.lower()}-{c.topk}-{c.form}")
each_form = pytest.mark.parametrize("form", ["engine", "select", "fold", "point"])


@each_family
@each_config
def test_texts_equal_generate(config: Config, family: str) -> None:
    """In full and padded buckets; drafts of all kinds are right now and then."""
    engine = make_engine(replace(config, family=family), padded=config.overlap)
    for prompt, done in zip(REQUESTS, engine.generate(REQUESTS, StopConditions(NEW)), strict=True):
        assert done.token_ids == expected(prompt, family)[:NEW]
    assert len(engine.stats.accept_lens) > 1
    assert engine.stats.unhealthy == 0
    expect_clean(engine)


def expect_clean(engine: Engine) -> None:
    """Rows that nobody holds have no state any more, but for those that nobody ever held; nobody shares beginnings."""
    assert engine.stats.shared_tokens == len(engine.prefixes) == 0
    for states in engine.states["target"].tensors:
        of_rows = states.flatten(1)
        assert bool(((of_rows == 0).all(1) | of_rows.isnan().all(1)).all())
        assert not of_rows[0].any()


@each_family
@pytest.mark.parametrize("config", [CHAIN, TREE, MIXED], ids=["chain", "tree", "shapes"])
@pytest.mark.parametrize("seed", range(2))
@each_form
def test_requests_come_and_go_in_any_order(config: Config, family: str, seed: int, form: str) -> None:
    """They are thrown out, given up and prefilled again, and rows of a batch change places."""
    config, random = replace(config, family=family, overlap=bool(seed), form=form), Random(seed)
    shape = Turns(config) if config.others else None
    engine = make_engine(config, padded=True, memory=3, **({"shape": shape} if shape else {}))
    take_turns = engine.scheduler.take_turns
    engine.scheduler.take_turns = lambda in_flight: random.sample(due := take_turns(in_flight), len(due))
    asked: dict[int, tuple[tuple[int, ...], int]] = {}
    done: dict[int, tuple[int, ...]] = {}
    left, thrown_out = 12, 0
    while left or engine.has_work:
        if left and random.random() < 0.5:
            left -= 1
            prompt, new = random.choice(REQUESTS), random.randint(1, NEW)
            asked[engine.add(prompt, StopConditions(new))] = prompt, new
        engine.read(keep=0 if random.random() < 0.5 else engine.ahead)
        if engine.scheduler.running and random.random() < 0.2:
            thrown_out += 1
            engine.scheduler.retract(random.choice(engine.scheduler.running))
        if engine.scheduler.running and random.random() < 0.05:
            gone = engine.abort(random.choice(engine.scheduler.running).request_id)
            del asked[gone.request_id]
        done |= {completion.request_id: completion.token_ids for completion in engine.step()}
    assert done == {number: expected(prompt, family)[:new] for number, (prompt, new) in asked.items()}
    assert thrown_out > 2
    expect_clean(engine)


@each_family
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("rows", ["eager", "lazy"])
def test_texts_of_a_seed(config: Config, rows: str, family: str) -> None:
    config = replace(config, verify="target_only", rows=rows, family=family)
    wanted = [alone(prompt, sampling, family) for prompt, sampling in zip(PROMPTS, SAMPLINGS, strict=True)]
    assert texts(config, padded=True) == wanted


@each_family
@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_texts_of_rejection(mode: str, family: str) -> None:
    outputs = rejected_texts(replace(CHAIN, verify=mode, family=family), padded=True)
    for text, prompt, sampling in zip(outputs, PROMPTS, SAMPLINGS, strict=True):
        greedy = sampling.temperature == 0
        oracle = expected(prompt, family) if greedy else written(mode, prompt, sampling, 3, family=family)
        assert text == oracle[:REJECTED_NEW]


@each_family
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
@each_form
def test_a_handover_takes_the_state_along(config: Config, family: str, form: str) -> None:
    """Over a channel, whatever is prefilled elsewhere."""
    requests = [(prompt, Sampling(0.0)) for prompt in REQUESTS]
    moved = completions_of(replace(config, family=family, form=form), requests, NEW)
    assert [done.token_ids for done in moved] == [expected(prompt, family)[:NEW] for prompt in REQUESTS]


def test_a_handover_without_the_state_is_refused() -> None:
    config = replace(CHAIN, family="bamba")
    ((prompt, handover),) = handed_over(config, REQUESTS[:1])
    engine = make_engine(config)
    for spoilt in ([], [state[:1] for state in handover.kv["target_state"]]):
        with pytest.raises(ContractError, match="the keys and values of a prompt of 12 tokens are"):
            engine.add(prompt, handover=replace(handover, kv={**handover.kv, "target_state": spoilt}))
    without = {owner: rows for owner, rows in handover.kv.items() if owner != "target_state"}
    with pytest.raises(ContractError, match="target_state"):
        engine.add(prompt, handover=replace(handover, kv=without))


def nothing(pool: StatePool, rows: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
    """Commit no state."""


def the_root(pool: StatePool, rows: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
    """Commit the state after the first node, whatever was accepted."""
    COMMIT(pool, rows, accept_index, accept_lens.clamp(max=1))


def another_node(pool: StatePool, rows: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
    """Commit the state after the node in the next column."""
    nodes = next(iter(pool.pending.values())).shape[1]
    COMMIT(pool, rows, torch.where(accept_index % nodes < nodes - 1, accept_index + 1, accept_index), accept_lens)


def no_windows(pool: StatePool, rows: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
    """Commit what layers have summed up, and leave the inputs of their convolutions as they were."""
    before = {part: states.clone() for part, states in pool.parts.items() if part.kind == CONV}
    COMMIT(pool, rows, accept_index, accept_lens)
    for part, states in before.items():
        pool.parts[part].copy_(states)


def windows_alone(pool: StatePool, rows: Tensor, accept_index: Tensor, accept_lens: Tensor) -> None:
    """Commit the inputs of convolutions alone."""
    before = {part: states.clone() for part, states in pool.parts.items() if part.kind != CONV}
    COMMIT(pool, rows, accept_index, accept_lens)
    for part, states in before.items():
        pool.parts[part].copy_(states)


COMMIT = StatePool.commit
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "initializer_range", "tie_word_embeddings", "bos_token_id", "eos_token_id", "dtype"),
)
"""What a hybrid has like the random models."""


@each_family
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("fault", [nothing, the_root, another_node, no_windows, windows_alone])
def test_texts_depend_on_the_state(
    config: Config, fault: Callable[..., None], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly every text is another one where a wrong state is committed."""
    engine = make_engine(replace(config, family=family))
    monkeypatch.setattr(StatePool, "commit", fault)
    outputs = [done.token_ids for done in engine.generate(REQUESTS, StopConditions(NEW))]
    right = [text == expected(prompt, family)[:NEW] for prompt, text in zip(REQUESTS, outputs, strict=True)]
    assert sum(right) < len(right) - 1


@each_family
@pytest.mark.parametrize("forms", [("select", "point"), ("point", "engine"), ("point", "fold")])
def test_a_handover_is_of_a_state_whatever_the_form(forms: tuple[str, str], family: str) -> None:
    """A request that has gone some steps is settled, and goes on elsewhere."""
    given, taking = (make_engine(replace(CHAIN, family=family, form=form)) for form in forms)
    prompt = REQUESTS[0]
    given.add(prompt, StopConditions(NEW))
    for _ in range(3):
        given.step()
    (request,) = given.scheduler.running
    text = (*prompt, *expected(prompt, family))[: request.committed]
    states = given.places.take(request.row or 0, request.committed)["target_state"]
    ((_, handover),) = handed_over(replace(CHAIN, family=family, form=forms[1]), [text])
    for state, wanted in zip(states, handover.kv["target_state"], strict=True):
        torch.testing.assert_close(state, wanted, rtol=1e-3, atol=1e-4)
    moved = replace(handover, kv={**handover.kv, "target_state": states})
    taking.add(text, StopConditions(NEW), handover=moved)
    done = [completion for _ in range(NEW) for completion in taking.step()]
    assert [completion.token_ids for completion in done] == [expected(text, family)[:NEW]]


def misread(row: int, column: int) -> Callable[..., Any]:
    """The commit of a program that ends so many places before the last node, of so many rows further."""

    def misreading(commit: Move) -> Move:
        def moved(operands: Tensors, attrs: Attrs, dims: Dims, buffers: Sequence[Tensor]) -> None:
            index, lens, *rest = operands
            commit((index.roll(row, 0), (lens - column).clamp(min=0), *rest), attrs, dims, buffers)

        return moved

    return misreading


def without(first: int, last: int) -> Callable[..., Any]:
    """The commit of a program that leaves some of the tensors of a layer as they are, of the six of a fold."""

    def leaving(commit: Move) -> Move:
        def moved(operands: Tensors, attrs: Attrs, dims: Dims, buffers: Sequence[Tensor]) -> None:
            kept = [tensor.clone() if first <= i % 6 < last else tensor for i, tensor in enumerate(buffers)]
            commit(operands, attrs, dims, kept)

        return moved

    return leaving


MISTAKES = [
    pytest.param(form, fault, id=f"{form}-{name}")
    for form in ("select", "fold")
    for name, fault in {"before": misread(0, 1), "other": misread(1, 0), "none": lambda _: lambda *_: None}.items()
] + [pytest.param("fold", without(*which), id=f"fold-{which}") for which in ((0, 1), (4, 5))]


def pointing(column: int, *, before: bool) -> Callable[..., Any]:
    """The number of a snapshot so many nodes further, or as it was."""

    def wrong(point: Callable[..., Tensors]) -> Callable[..., Tensors]:
        def pointed(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
            old, index, lens = operands
            last = torch.arange(index.shape[1]) == lens[:, None] - 1
            nodes = int(attrs["nodes"])
            index = torch.where(last & (index % nodes + column < nodes), index + column, index)
            return (old,) if before else point((old, index, lens), attrs, dims)

        return pointed

    return wrong


@each_family
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("fault", [pointing(0, before=True), pointing(1, before=False)], ids=["none", "next"])
def test_texts_depend_on_where_a_program_says_that_states_are(
    config: Config, fault: Callable[..., Any], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of its number."""
    monkeypatch.setitem(SEMANTICS, POINT, fault(SEMANTICS[POINT]))
    engine = make_engine(replace(config, family=family, form="point"))
    outputs = [done.token_ids for done in engine.generate(REQUESTS, StopConditions(NEW))]
    right = [text == expected(prompt, family)[:NEW] for prompt, text in zip(REQUESTS, outputs, strict=True)]
    assert sum(right) < len(right) - 1


@each_family
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize(("form", "fault"), MISTAKES)
def test_texts_depend_on_what_a_program_commits(
    config: Config, form: str, fault: Callable[..., Any], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of its own commit."""
    engine = make_engine(replace(config, family=family, form=form))
    owner, commit = MOVES[f"state.{form}"]
    monkeypatch.setattr("specc.runtime.semantics.reference.MOVES", {**MOVES, f"state.{form}": (owner, fault(commit))})
    outputs = [done.token_ids for done in engine.generate(REQUESTS, StopConditions(NEW))]
    right = [text == expected(prompt, family)[:NEW] for prompt, text in zip(REQUESTS, outputs, strict=True)]
    assert sum(right) < len(right) - 1


def test_a_program_that_commits_no_state_is_refused() -> None:
    target, draft = target_of(family="bamba"), draft_of("STANDALONE", "bamba")
    with pytest.raises(
        UnsupportedModelError, match=r"^2 layers of the target keep .*, the program commits none"
    ) as caught:
        Engine(MemoryProgram(plans_of(CHAIN)), target, draft)
    assert caught.value.hint == "rebuild with `state_layers: 2` of the target"
    program = MemoryProgram(plans_of(replace(CHAIN, family="bamba")))
    with pytest.raises(UnsupportedModelError, match=r"^no layers of the target keep .* commits the state of some"):
        Engine(program, target_of(), draft_of("STANDALONE"))


@each_family
def test_a_draft_that_keeps_a_state_is_refused_by_name(family: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"recurrent state .* keeps of targets alone"):
        StandaloneDraft(target_of(family=family).model)


@each_family
@pytest.mark.parametrize(
    ("topk", "form"), [(1, "engine"), (2, "engine"), (1, "fold"), (2, "fold"), (1, "point"), (2, "auto")]
)
def test_a_directory_is_built_for_and_run(
    family: str, topk: int, form: str, models: dict[str, Models], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the commands alone: its config.json says which layers keep keys and values, and which a state."""
    monkeypatch.setattr("specc.compiler.driver.build.compile_machine_code", lambda *_, **__: None)
    torch.manual_seed(3)
    config = AutoModelForCausalLM.from_pretrained(models["random"].target).config.to_dict()
    sizes = {name: config[name] for name in SIZES} | {"hidden_size": 32, "num_hidden_layers": 4} | HYBRIDS[family]
    AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**sizes)).save_pretrained(tmp_path / "target")
    AutoTokenizer.from_pretrained(EXAMPLES / "target").save_pretrained(tmp_path / "target")
    hybrid = replace(models["random"], target=tmp_path / "target")
    case = Case("STANDALONE", f"random_{family}", topk=topk, nodes=4 * topk, page_size=16, form=form)
    wheel = build_wheel(case, hybrid, tmp_path)
    command = ["run", str(wheel), "--check", "--format", "json", "--max-new-tokens", "12"]
    command += ["--target", str(hybrid.target), "--draft", str(hybrid.drafts["STANDALONE"])]
    result = CliRunner().invoke(app, [*command, *(word for prompt in WRITTEN[:3] for word in ("--prompt", prompt))])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert [item["check"]["identical"] for item in record["completions"]] == [True] * 3
    refused = CliRunner().invoke(app, [*command[:-1], str(hybrid.target), "--prompt", "x"])
    assert "run/model-unsupported" in refused.output
    assert "the engine keeps of targets alone" in refused.output.replace("\n", " ")
