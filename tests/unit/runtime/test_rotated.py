"""A rotated step beside a whole one over the same models: what is accepted and drafted, and what is called when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from fakes.cuda import FakeBackend, FakeCuda
from fakes.drafts import Engine
from fakes.sglang_blocks import brought
from programs import compile_to, load, planned
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.errors import BatchError, BindError, FieldError, ForwardContractError, TornError
from specc.runtime.plan.halves import halves
from specc.runtime.plan.plan import PROMPT, Plan
from specc.runtime.rotated import RotatedStep
from specc.runtime.state.carry import Carry
from specc.runtime.step import Step

CPU = torch.device("cpu")
CHAINS = ["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH", "NGRAM"]
WEIGHED = {name: 1 if name == "DFLASH" else 3 for name in CHAINS if name != "NGRAM"}
"""Algorithms whose drafts are drawn -> how many fields have what they were drawn from: a block has one."""
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2]}
ROWS = list(PROMPTS)
POISON = 0xFF


def plan_of(algorithm: str, **keys: Any) -> Plan:
    return planned(algorithm, **{"max_requests": 6, "buckets": [1, 2, 4]} | keys)[0]


class Machine:
    """A program over an engine that runs the target by itself."""

    def __init__(
        self, algorithm: str, padded: int | None = None, backend: ReferenceBackend | None = None, **keys: Any
    ) -> None:
        whole = plan_of(algorithm, **keys)
        self.plan = plan_of(algorithm, step="rotated", target={"padded_vocab_size": padded}, **keys)
        self.engine, self.other = (Engine.of_plan(whole, seed=3) for _ in range(2))
        where = self.plan, backend or ReferenceBackend(), CPU
        more: Any = {"tables": brought(whole), "poison": POISON}
        self.step = RotatedStep(*where, self.engine, self.engine.table, **more)
        self.whole = Step(whole, ReferenceBackend(), CPU, self.other, self.other.table, **more)
        for engine in (self.engine, self.other):
            engine.prompts |= PROMPTS
        self.lens = {row: len(prompt) for row, prompt in PROMPTS.items()}
        self.batch = Batch(ROWS, [self.lens[row] for row in ROWS])

    def prefill(self) -> None:
        texts = [token for row in ROWS for token in PROMPTS[row]]
        batch = replace(self.batch, prompt_tokens=texts) if PROMPT in self.plan.reads("prefill") else self.batch
        assert self.step.prefill(batch).to_host().tokens(0) == self.whole.prefill(batch).to_host().tokens(0)

    def target(self, rows: Sequence[int], padded: int = 0) -> Any:
        """The target over bonus and drafts of some rows, and padding rows behind them."""
        at = torch.tensor([*rows, *[0] * padded])
        lens = torch.tensor([*(self.lens[row] for row in rows), *[0] * padded])
        pools = self.step.pools
        tokens = torch.cat((pools["bonus"][at][:, None].long(), pools["drafts"][at]), 1)
        positions = lens[:, None] + torch.arange(tokens.shape[1])
        slots = torch.where(at[:, None] != 0, self.engine.table[at[:, None], positions].long(), 0)
        return self.engine.target(
            tokens=tokens, positions=positions, slots=slots, rows=at, seq_lens=lens, capture="full"
        )

    def decode(self, rows: Sequence[int], at_least: int = 0, *, whole_bucket: bool = True) -> None:
        """One step of both programs; ``whole_bucket``: the engine has rows for padding, too."""
        batch = Batch(list(rows), [self.lens[row] for row in rows])
        padded = self.plan.bucket(max(len(rows), at_least)) - len(rows) if at_least and whole_bucket else 0
        given = self.target(rows, padded)
        committed = self.step.commit(batch, given.logits, at_least=at_least)
        wanted = self.whole.decode(batch).to_host()
        host_result = committed.to_host()
        proposed = self.step.propose(batch, given.hidden if self.step.reads_hidden else None).to_host()
        for name in ("predict", "accept_lens", "new_seq_lens", "bonus"):
            assert getattr(host_result, name) == getattr(wanted, name), name
        assert (
            [a | b for a, b in zip(host_result.health, proposed.health, strict=True)]
            == wanted.health
            == [0] * len(rows)
        )
        assert proposed.drafts == self.step.pools["drafts"][torch.tensor(rows)].tolist()
        self.lens |= dict(zip(rows, host_result.new_seq_lens, strict=True))


@pytest.mark.parametrize(("padded", "whole_bucket"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("algorithm", CHAINS)
def test_every_step_accepts_what_a_whole_one_does(
    algorithm: str, *, overlap: bool, padded: bool, whole_bucket: bool
) -> None:
    machine = Machine(algorithm, overlap=overlap)
    machine.prefill()
    for rows in (ROWS, ROWS[:1], ROWS[1:], [6, 1, 3], ROWS, ROWS):
        machine.decode(rows, at_least=4 if padded else 0, whole_bucket=whole_bucket)


@pytest.mark.parametrize("verify", ["rejection", "block"])
@pytest.mark.parametrize("algorithm", [*WEIGHED, "DSPARK"])
def test_drafts_are_weighed_by_what_they_were_drawn_from(algorithm: str, verify: str) -> None:
    """Of requests at several temperatures, one of them greedy: a step accepts what a whole one does, draw by draw."""
    machine = Machine(algorithm, verify=verify)
    params = [Sampling(temperature=heat, seed=seed) for seed, heat in enumerate((0.7, 0.0, 1.3))]
    for step in (machine.step, machine.whole):
        step.set_sampling(ROWS, params)
    machine.prefill()
    for rows in (ROWS, ROWS[:1], ROWS[1:], [6, 1, 3], ROWS, ROWS):
        machine.decode(rows)
    drafts = WEIGHED.get(algorithm, 3)
    assert {name for name in machine.plan.carry if name.startswith("draft_")} == {
        f"draft_{what}{number}" for what in ("logits", "mass") for number in range(drafts)
    }


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("slots", ["req_to_token", "block_table"])
@pytest.mark.parametrize("algorithm", CHAINS)
def test_each_half_is_a_graph(algorithm: str, slots: str, *, overlap: bool) -> None:
    """Nothing comes before what the engine hands over, which cuts graphs, whatever lengths are known by."""
    plan = plan_of(algorithm, step="rotated", tables={"slots": slots}, overlap=overlap)
    commit, propose = halves(plan)
    captured = [capture.nodes for capture in plan.captures]
    assert captured == [tuple(node.name for node in half if node.kind != "given") for half in (commit, propose)]


def test_the_halves_are_two_calls() -> None:
    plan = plan_of("EAGLE", step="rotated")
    commit, propose = halves(plan)
    assert commit[0].name == "given_logits"
    assert propose[0].name == "given_hidden"
    assert [node.name for node in propose if node.kind == "external"] == ["extend", "draft_0", "draft_1"]
    assert halves(plan_of("EAGLE")) == (plan_of("EAGLE").nodes("step"),)
    assert len(plan.captures) == 2
    assert plan.totals[4].launches_in_graph == plan_of("EAGLE").totals[4].launches_in_graph
    assert plan.totals[4].host_syncs == 0
    assert (plan.kv.window, plan.kv.shifted) == (6, True)


def test_calls_out_of_order_are_refused() -> None:
    machine = Machine("EAGLE")
    machine.prefill()
    step, batch = machine.step, Batch(ROWS)
    given = machine.target(ROWS)
    with pytest.raises(BatchError, match="propose follows a commit"):
        step.propose(batch, given.hidden)
    with pytest.raises(BatchError, match="does not run the target"):
        step.decode(batch)
    step.commit(batch, given.logits)
    with pytest.raises(BatchError, match="commit comes after propose"):
        step.commit(batch, given.logits)
    with pytest.raises(BatchError, match="prefill comes after propose"):
        step.prefill(machine.batch)
    with pytest.raises(BatchError, match=r"rows \[3, 1, 6\] were committed, and these are \[1, 3, 6\]"):
        step.propose(Batch([1, 3, 6]), given.hidden)
    with pytest.raises(BatchError, match="needs the hidden states"):
        step.propose(batch)
    with pytest.raises(ForwardContractError, match=r"the engine handed over hidden as torch\.float32"):
        step.propose(batch, given.hidden[:, :, :-1].contiguous())
    assert not step.torn
    step.propose(batch, given.hidden)
    with pytest.raises(BatchError, match="propose follows a commit"):
        step.propose(batch, given.hidden)


def test_the_rows_of_a_batch_are_those_that_it_had_when_it_was_committed() -> None:
    """Whatever the engine puts into its list, or its tensor, meanwhile."""
    machine = Machine("EAGLE")
    machine.prefill()
    listed, held = list(ROWS), torch.tensor(ROWS)
    for rows in (listed, held):
        given = machine.target(ROWS)
        machine.step.commit(Batch(rows), given.logits)
        rows[0] = 6
        rows[2] = 3
        if isinstance(rows, list):
            with pytest.raises(BatchError, match=r"rows \[3, 1, 6\] were committed, and these are \[6, 1, 3\]"):
                machine.step.propose(Batch(rows), given.hidden)
        proposed = machine.step.propose(Batch(ROWS), given.hidden)
        assert proposed.drafts.tolist() == machine.step.pools["drafts"][ROWS].tolist()


def test_hidden_states_that_nobody_reads_are_refused() -> None:
    machine = Machine("STANDALONE")
    machine.prefill()
    given = machine.target(ROWS)
    machine.step.commit(Batch(ROWS), given.logits)
    with pytest.raises(BatchError, match="does not read hidden states"):
        machine.step.propose(Batch(ROWS), torch.zeros(3, 4, 8))


def wrong(logits: Tensor) -> list[tuple[Any, str]]:
    """Logits that do not fit, and what is said of them."""
    return [
        (logits[:2].clone(), r"logits as torch.float32\[2, 4, "),
        (logits.double(), "logits as torch.float64"),
        (logits.transpose(0, 1).contiguous().transpose(0, 1), "with strides"),
        ([1.0], r"logits \[1.0\], expected f32"),
    ]


def test_logits_that_do_not_fit_change_nothing() -> None:
    machine = Machine("EAGLE", overlap=False)
    machine.prefill()
    batch = Batch(ROWS, [machine.lens[row] for row in ROWS])
    before = {name: pool.clone() for name, pool in machine.step.pools.items()}
    for logits, message in wrong(machine.target(ROWS).logits):
        with pytest.raises(ForwardContractError, match=message):
            machine.step.commit(batch, logits)
    assert all(torch.equal(pool, before[name]) for name, pool in machine.step.pools.items())
    machine.decode(ROWS)


@pytest.mark.parametrize("flat", [True, False])
def test_rows_of_logits_are_as_far_apart_as_the_plan_has_them(*, flat: bool) -> None:
    """Of an engine that pads its vocabulary; what is behind a row is not read, and the hidden rows may be flat, too."""
    machine, plain = Machine("EAGLE", padded=104), Machine("EAGLE")
    machine.prefill()
    batch = Batch(ROWS, [machine.lens[row] for row in ROWS])
    for _ in range(3):
        given = machine.target(ROWS)
        wide = torch.full((3, 4, 104), torch.inf)
        wide[..., :96] = given.logits
        logits = wide.view(12, 104)[:, :96] if flat else wide[..., :96]
        machine.step.commit(batch, logits)
        proposed = machine.step.propose(batch, given.hidden.view(12, -1) if flat else given.hidden).to_host()
        assert proposed.drafts == machine.step.pools["drafts"][torch.tensor(ROWS)].tolist()
        carried, wanted = machine.step.read_carry(ROWS).fields, machine.whole.decode(batch).to_host()
        assert carried["bonus"].tolist() == wanted.bonus
        machine.lens |= dict(zip(ROWS, wanted.new_seq_lens, strict=True))
        batch = Batch(ROWS, wanted.new_seq_lens)
    for logits in (given.logits, torch.zeros(3, 4, 112)[..., :96], torch.zeros(12, 112)[:, :96]):
        with pytest.raises(ForwardContractError, match="expected its rows 104 elements apart, as the plan has them"):
            machine.step.commit(batch, logits)
    plain.prefill()
    with pytest.raises(ForwardContractError, match=r"with strides \[416, 104, 1\], expected it contiguous"):
        plain.step.commit(batch, wide[..., :96])
    with pytest.raises(ForwardContractError, match=r"logits as torch.float32\[11, 96\], expected torch.float32\[3, 4"):
        plain.step.commit(batch, wide.view(12, 104)[:11, :96])


@pytest.mark.parametrize("at_least", [0, 4])
def test_what_is_handed_over_is_refused_alike_in_a_padded_step(at_least: int) -> None:
    """What padding rows are put behind is looked at first, as it came; without rows there are no strides to look at."""
    machine = Machine("EAGLE", padded=104)
    machine.prefill()
    batch = Batch(ROWS)
    given = machine.target(ROWS)
    wide = torch.zeros(3, 4, 104)[..., :96].copy_(given.logits)
    for logits, message in [
        (torch.zeros(3, 4, 112)[..., :96], "expected its rows 104 elements apart"),
        (torch.zeros(3, 4, 208)[..., :192:2], r"with strides \[832, 208, 2\]"),
        (wide.to_sparse(), "which is torch.sparse_coo, not a dense tensor"),
        (wide.to("meta"), "on meta, expected cpu"),
    ]:
        with pytest.raises(ForwardContractError, match=message):
            machine.step.commit(batch, logits, at_least=at_least)
    machine.step.commit(batch, wide, at_least=at_least)
    hidden = torch.zeros(3, 4, 128)[..., ::2]
    for wrong, message in (
        (hidden, r"hidden with strides \[512, 128, 2\]"),
        (hidden.to_sparse(), "hidden, which is torch"),
    ):
        with pytest.raises(ForwardContractError, match=message):
            machine.step.propose(batch, wrong)
    assert not machine.step.torn
    machine.step.propose(batch, given.hidden)
    empty = Batch([])
    machine.step.commit(empty, wide[:0].flatten(0, 1), at_least=at_least)
    assert machine.step.propose(empty, given.hidden[:0]).to_host().drafts == []


def test_a_failure_of_the_second_half_tears_its_rows() -> None:
    machine = Machine("EAGLE")
    machine.prefill()
    given = machine.target(ROWS)

    def fail(name: str, _: object) -> None:
        if name == "draft":
            raise RuntimeError(name)

    machine.step.commit(Batch(ROWS), given.logits)
    machine.engine.on_call = fail
    with pytest.raises(RuntimeError, match="draft"):
        machine.step.propose(Batch(ROWS), given.hidden)
    machine.engine.on_call = None
    with pytest.raises(TornError):
        machine.step.commit(Batch(ROWS), given.logits)
    machine.step.prefill(machine.batch)
    assert not machine.step.torn


def test_drafts_that_are_none_are_not_accepted() -> None:
    """As of a request that has none: an engine writes -1 in their place."""
    machine = Machine("EAGLE")
    machine.prefill()
    machine.step.pools["drafts"][:] = -1
    given = machine.target(ROWS)
    committed = machine.step.commit(Batch(ROWS), given.logits).to_host()
    assert committed.accept_lens == [1, 1, 1]
    assert [tokens[0] for tokens in committed.predict] == given.logits[:, 0].argmax(-1).tolist()


def test_a_request_is_written_without_drafts() -> None:
    """By an engine that has prefilled on its own: -1 is a draft that there is not, other numbers are tokens."""
    machine = Machine("EAGLE")
    machine.prefill()
    fields = dict(machine.step.read_carry(ROWS).fields) | {"drafts": torch.full((3, 3), -1)}
    machine.step.write_carry(ROWS, Carry(fields))
    carry = machine.step.unpack(machine.step.pack(ROWS))
    assert (carry.fields["drafts"] == -1).all()
    machine.step.write_carry(ROWS, carry)
    committed = machine.step.commit(Batch(ROWS), machine.target(ROWS).logits).to_host()
    assert committed.accept_lens == [1, 1, 1]
    for wrong in (-2, 96):
        message = rf"field 'drafts' holds {wrong}, the program carries numbers in \[-1, 96\) there"
        with pytest.raises(FieldError, match=message):
            machine.step.write_carry(ROWS, Carry(fields | {"drafts": torch.full((3, 3), wrong)}))
    bonus = {"bonus": torch.full((3,), -1, dtype=torch.int32)}
    with pytest.raises(FieldError, match=r"field 'bonus' holds -1, the program carries numbers in \[0, 96\) there"):
        machine.step.write_carry(ROWS, Carry(fields | bonus))


def test_rows_beyond_the_batch_are_ignored() -> None:
    machine = Machine("EAGLE")
    machine.prefill()
    given = machine.target(ROWS, padded=2)
    committed = machine.step.commit(Batch(ROWS), given.logits).to_host()
    machine.step.propose(Batch(ROWS), given.hidden)
    assert committed.accept_lens == machine.whole.decode(Batch(ROWS)).to_host().accept_lens


def test_what_graphs_are_captured_over_is_what_is_handed_over() -> None:
    step = Machine("EAGLE").step
    zeros = step.zeros()
    assert {name: list(tensor.shape) for name, tensor in zeros.items()} == {"logits": [4, 4, 96], "hidden": [4, 4, 64]}
    for given in ({"hidden": zeros["hidden"][:2]}, {"aux": zeros["hidden"]}):
        with pytest.raises(BindError, match=r"handed over are \{'logits': \[4, 4, 96\], 'hidden': \[4, 4, 64\]\}"):
            step.capture(given=given)
    with pytest.raises(BindError, match="CUDA"):
        step.capture(given=zeros)


@pytest.mark.parametrize("largest", [None, 4, 3, 1, 0])
def test_buckets_beyond_the_largest_are_launched(largest: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And steps of all accept what a whole one does."""
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    backend = FakeBackend(cuda)
    machine = Machine("NGRAM", backend=backend)
    path = machine.plan.size("A")
    machine.step.capture("segments", tokens=None if largest is None else largest * path + path - 1)
    captured = [bucket for bucket in (1, 2, 4) if largest is None or bucket <= largest]
    commit, propose = halves(machine.plan)
    assert sorted(machine.step.memory.graphs) == captured
    machine.prefill()
    for rows in (ROWS, ROWS[:1], ROWS[1:], ROWS):
        backend.launched.clear()
        machine.decode(rows)
        nodes = [node.name for node in (*commit, *propose) if node.kind != "given"]
        moved = [node.name for node in commit if node.kind != "given"]  # logits lie elsewhere in every step
        assert backend.launched == (moved if machine.plan.bucket(len(rows)) in captured else nodes)


@pytest.mark.parametrize("largest", [None, 2, 0])
@pytest.mark.parametrize("algorithm", ["NGRAM", "EAGLE"])
def test_a_graph_makes_the_logits_that_an_engine_makes(
    algorithm: str, largest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every bucket, from what there is in the step; logits that are handed over nonetheless are read."""
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    backend = FakeBackend(cuda)
    machine = Machine(algorithm, backend=backend)
    path, nodes = machine.plan.size("A"), [node.name for node in halves(machine.plan)[0] if node.kind != "given"]
    left = torch.zeros(4 * path, machine.plan.size("V"))
    made, counted, seen = torch.full_like(left, torch.nan), torch.zeros(4, dtype=torch.int32), torch.full((4,), -1)
    drafted, drafted_for = torch.full((4, machine.plan.size("S")), -1), torch.full((4,), -1)

    def queue(work: Any) -> None:
        work() if cuda.graph is None else cuda.graph.nodes.append(work)

    def make_logits(*, tokens: int) -> Tensor:
        queue(lambda: made[:tokens].copy_(left[:tokens]))
        return made[:tokens]

    def committed(*, rows: Tensor, accept_lens: Tensor, **_: Tensor) -> None:
        queue(lambda: counted[: len(accept_lens)].copy_(accept_lens))
        queue(lambda: seen[: len(rows)].copy_(rows))

    def proposed(*, rows: Tensor, drafts: Tensor, **_: Tensor) -> None:
        queue(lambda: drafted[: len(rows)].copy_(drafts))
        queue(lambda: drafted_for[: len(rows)].copy_(rows))

    machine.engine.make_logits, machine.engine.committed, machine.engine.proposed = make_logits, committed, proposed
    zeros = machine.step.zeros()
    given = {"hidden": zeros["hidden"]} if algorithm == "EAGLE" else {}
    machine.step.capture("segments", given=given, tokens=None if largest is None else largest * path)
    machine.prefill()
    for turn, rows in enumerate((ROWS, ROWS[:1], ROWS, ROWS[1:], ROWS)):
        batch = Batch(rows, [machine.lens[row] for row in rows])
        wanted, size = machine.whole.decode(batch).to_host(), machine.plan.bucket(len(rows))
        captured = largest is None or size <= largest
        size = size if captured else len(rows)  # others have no rows of padding
        target = machine.target(rows, padded=size - len(rows))
        scores, handed = target.logits.flatten(0, 1), turn == 2
        left.fill_(torch.nan) if handed else left[: len(scores)].copy_(scores)
        backend.launched.clear()
        seen.fill_(-1)
        result = machine.step.commit(batch, target.logits if handed else None).to_host()
        assert backend.launched == ([] if captured and not handed else nodes)
        assert (result.predict, result.accept_lens) == (wanted.predict, wanted.accept_lens)
        assert counted[: len(rows)].tolist() == wanted.accept_lens
        assert seen.tolist() == [*rows, *[0] * (size - len(rows)), *[-1] * (len(seen) - size)]
        drafts = machine.step.propose(batch, target.hidden if machine.step.reads_hidden else None).to_host().drafts
        assert drafted[: len(rows)].tolist() == drafts
        assert drafted_for[:size].tolist() == [*rows, *[0] * (size - len(rows))]
        machine.lens |= dict(zip(rows, result.new_seq_lens, strict=True))


def test_a_graph_holds_how_the_hidden_states_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the forwards behind it, so that drafts are a replay."""
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    backend = FakeBackend(cuda)
    machine, made = Machine("EAGLE", backend=backend), list[int]()
    rows = torch.zeros(16, 64)

    def make_hidden(*, tokens: int) -> Tensor:
        made.append(tokens)
        return rows[:tokens]

    machine.engine.make_hidden = make_hidden
    machine.step.capture()
    machine.prefill()
    given = machine.target(ROWS, padded=1)
    machine.step.commit(Batch(ROWS), given.logits)
    called, captured = len(machine.engine.calls), len(made)
    backend.launched.clear()
    machine.step.propose(Batch(ROWS))
    assert (len(machine.engine.calls), len(made), backend.launched) == (called, captured, [])
    machine.step.commit(Batch(ROWS), given.logits)
    machine.step.propose(Batch(ROWS), given.hidden)
    assert len(machine.engine.calls) > called
    assert len(made) == captured


def test_hidden_states_that_an_engine_makes() -> None:
    machine = Machine("EAGLE")
    machine.prefill()
    given = machine.target(ROWS)
    with pytest.raises(BatchError, match="callbacks have no method make_logits"):
        machine.step.commit(Batch(ROWS))
    machine = Machine("EAGLE")
    machine.engine.make_hidden = lambda *, tokens: given.hidden.flatten(0, 1)[:tokens]
    machine.prefill()
    given = machine.target(ROWS)
    twin = Machine("EAGLE")
    twin.prefill()
    for runner, hidden in ((machine, None), (twin, twin.target(ROWS).hidden)):
        runner.step.commit(Batch(ROWS), given.logits)
        runner.step.propose(Batch(ROWS), hidden)
    assert machine.step.pools["drafts"].tolist() == twin.step.pools["drafts"].tolist()


def test_an_empty_batch_does_not_run() -> None:
    machine = Machine("EAGLE")
    assert machine.step.commit(Batch([]), torch.empty(0)).to_host().bonus == []
    assert machine.step.propose(Batch([]), torch.empty(0)).to_host().drafts == []
    assert machine.engine.calls == []


def test_hidden_states_that_are_handed_over_are_counted() -> None:
    """f32[B, A, 64] of the target, all that holds hidden states where nothing is drafted from the draft's own."""
    plan = plan_of("EAGLE", step="rotated", num_steps=1)
    assert {size: totals.hidden_state_bytes for size, totals in plan.totals.items()} == {
        size: size * 2 * 64 * 4 for size in (1, 2, 4)
    }
    assert plan_of("STANDALONE", step="rotated").totals[4].hidden_state_bytes == 0


def test_nothing_of_the_target_is_left() -> None:
    module = compile_to("canonicalize", load("EAGLE", step="rotated"))
    assert sorted(module.carries) == ["bonus", "drafts", "seq_lens"]
    assert not module.find("model.target")


def test_a_look_up_is_a_launch_beside_a_block_table() -> None:
    plan = plan_of("NGRAM", step="rotated", tables={"slots": "block_table"}, page_size=4)
    (_, propose) = halves(plan)
    assert [(node.name, node.kind) for node in propose] == [("ngram_propose", "launch"), ("redraft_rows", "launch")]


@pytest.mark.parametrize(
    ("graphs", "largest", "sizes"),
    [(None, None, [0, 1, 3, 2, 4, 4]), ({}, None, [0, 1, 4, 2, 4, 4]), ({}, 2, [0, 1, 3, 2, 4, 4])],
)
def test_rows_that_a_step_runs_over(graphs: dict[int, Any] | None, largest: int | None, sizes: list[int]) -> None:
    """Those of a bucket that is asked for, whatever is captured; otherwise of one that is, or of no padding."""
    step = Machine("EAGLE").step
    step._graphs, step._largest = graphs, largest
    asked = [(0, 0), (1, 0), (3, 0), (1, 2), (1, 4), (3, 1)]
    assert [step._padded(rows, at_least) for rows, at_least in asked] == sizes
