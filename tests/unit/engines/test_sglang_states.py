"""What SGLang is told of a step whose target keeps recurrent states, and how chains look to its layers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_states import NgramEmbeddingManager

from specc.engines.sglang.attention.recurrent import BesideStates, sized
from specc.engines.sglang.attention.roles import Roles
from specc.engines.sglang.parts.states import (
    NgramHistory,
    RecurrentStates,
    clear,
    kept_at_ends,
    looks_up,
    misfits,
    own_states,
    ring_of,
)

CURSORS = ("replayssm_spec_write_pos", "replayssm_cache_base", "replayssm_is_flush")
ROWS, NODES = torch.tensor([4, 2, 0]), 3
"""Pool rows of two requests and of padding."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Stand in for the modules of SGLang's that are imported, and take note of what its commit is given.

    A parameter says whether states are kept at intervals, and whether there is no cache of prefixes.
    """
    seen: list[dict[str, Any]] = []

    def commit(worker: Any, batch: Any, accept_lens: Any, accept_index: Any, draft_token_num: int) -> None:
        seen.append({"batch": batch, "lens": accept_lens, "index": accept_index, "nodes": draft_token_num})
        seen[-1]["runner"] = vars(worker.model_runner)

    def track(batch: Any) -> None:
        batch.mamba_track_indices = torch.tensor([9, -1])

    kept, uncached = getattr(request, "param", (True, False))
    mamba = SimpleNamespace(enable_mamba_extra_buffer=kept)
    modules: dict[str, dict[str, Any]] = {
        "runtime_context": {
            "get_exec": lambda: SimpleNamespace(mamba=mamba),
            "get_memory": lambda: SimpleNamespace(disable_radix_cache=uncached),
            "get_schedule": lambda: SimpleNamespace(page_size=16),
            "mamba_track_grid": lambda page: 4 * page,
        },
        "model_executor.forward_batch_info": {"ForwardMode": SimpleNamespace(TARGET_VERIFY="verify")},
        "speculative.spec_utils": {
            "commit_mamba_states_after_verify": commit,
            "prepare_mamba_track_for_verify": track,
        },
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, f"sglang.srt.{name}", module)
    return seen


def worker(slots: int = 8) -> Any:
    """Return a worker of 6 pool rows and some slots of states."""
    pool = SimpleNamespace(
        req_to_token=torch.zeros(6, 8), mamba_pool=SimpleNamespace(size=slots),
        req_index_to_mamba_index_mapping=torch.tensor([0, 7, 6, 5, 4, 3], dtype=torch.int32),
    )  # fmt: skip
    runner = SimpleNamespace(attn_backend="the server's own", model="model")
    return SimpleNamespace(target_worker=SimpleNamespace(model_runner=runner), req_to_token_pool=pool)


def plans(*tables: str, nodes: int = NODES, family: str = "state_select") -> dict[str, Any]:
    """Return the plan of a program for 4 requests, which reads these tables."""
    sizes = {"N": nodes}
    kernels = {"commit": SimpleNamespace(family=family)}
    return {"chain": SimpleNamespace(inputs=dict.fromkeys(tables), buckets=(4,), size=sizes.get, kernels=kernels)}


def snapshots() -> tuple[Any, SimpleNamespace]:
    """Return a worker, and its states: a matrix and a window of 2 layers, 9 rows, 6 requests and as many nodes."""
    of = worker()
    kept, left = torch.zeros(2, 9, 4, 4), torch.zeros(2, 6, NODES, 4, 4)
    windows, inputs = torch.zeros(2, 9, 5, 3), torch.zeros(2, 6, NODES, 5, 3)
    states = SimpleNamespace(
        temporal=kept, intermediate_ssm=left, conv=[windows], intermediate_conv_window=[inputs]
    )  # fmt: skip
    of.req_to_token_pool.mamba_pool.mamba_cache = states
    nothing = SimpleNamespace(conv_state=None, context=None)
    of.req_to_token_pool.short_conv_pool = of.req_to_token_pool.ngram_pool = nothing
    of.target_worker.model_runner.req_to_token_pool = of.req_to_token_pool
    of.target_worker.model_runner.attn_backend = SimpleNamespace(linear_attn_backend=SimpleNamespace())
    return of, states


@pytest.mark.usefixtures("told")
def test_a_program_that_copies_states_is_told_where_they_are() -> None:
    """Layer by layer, the matrix before the window; where they go where a text crosses an interval, by pool row."""
    of, kept = snapshots()
    states = RecurrentStates(of, plans("state_rows"))
    pairs = [(kept.temporal, kept.intermediate_ssm), (kept.conv[0], kept.intermediate_conv_window[0])]
    wanted = [tensor[layer].data_ptr() for layer in range(2) for pair in pairs for tensor in pair]
    assert [tensor.data_ptr() for pair in states.pools()["target"] for tensor in pair] == wanted
    tables = states.tables()
    assert tables["state_rows"] is of.req_to_token_pool.req_index_to_mamba_index_mapping
    assert tables["kept_interval"].tolist() == [64]
    states.say(SimpleNamespace(req_pool_indices=torch.tensor([4, 2])))
    assert tables["kept_rows"].tolist() == [-1, -1, -1, -1, 9, -1]
    other = RecurrentStates(of, plans())
    assert (other.pools(), other.tables()) == ({}, {})


@pytest.mark.usefixtures("told")
def test_what_keeps_a_program_from_copying_states() -> None:
    of, kept = snapshots()
    assert not [*misfits(plans(), of), *misfits(plans("state_rows"), of)]
    (found,) = misfits(plans("state_rows", family="state_fold"), of)
    assert found.endswith("leave state_form: fold out")
    (found,) = misfits(plans("state_rows", nodes=2), of)
    assert found.startswith("the server keeps the states of shorter steps elsewhere")
    kept.intermediate_ssm = None
    (found,) = misfits(plans("state_rows"), of)
    assert found.startswith("the server keeps no state of each node")
    of, _ = snapshots()
    of.req_to_token_pool.ngram_pool = SimpleNamespace(conv_state=None, context=torch.zeros(1))
    (found,) = misfits(plans("state_rows"), of)
    assert found.startswith("the server keeps states beside those of its recurrent layers")


def test_the_commit_is_of_the_last_accepted_nodes_of_chains(told: list[dict[str, Any]]) -> None:
    """Nodes have SGLang's numbers; padding is said to have accepted one, as nothing has the number -1."""
    of = worker()
    states = RecurrentStates(of, plans())
    lengths = torch.tensor([10, 20, 0])
    states.commit("attention", ROWS, torch.tensor([3, 1, 0], dtype=torch.int32), lengths)
    (said,) = told
    assert said["lens"].tolist() == [3, 1, 1]
    assert said["index"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert (said["nodes"], said["runner"]) == (NODES, {"attn_backend": "attention", "model": "model"})
    batch = said["batch"]
    assert (batch.forward_mode, batch.tree_cache.page_size) == ("verify", 16)
    assert batch.req_pool_indices is ROWS
    assert batch.seq_lens is lengths
    assert batch.mamba_track_indices.tolist() == [-1, -1, -1], "nobody has said where to"
    assert of.target_worker.model_runner.attn_backend == "the server's own", "which its own steps go on with"


def ringed(length: int = 8) -> Any:
    """Return a worker whose states are without the records that are in rings of such a length, by pool row."""
    of, pool = worker(), SimpleNamespace(size=8, linear_replayssm_cache_len=length)
    for number, name in enumerate(CURSORS, 1):
        setattr(pool, name, torch.full((6,), number, dtype=torch.int32))
    of.req_to_token_pool.mamba_pool = pool
    return of


def test_rings_are_told_what_was_accepted_and_what_the_longest_step_is(told: list[dict[str, Any]]) -> None:
    """Padding has accepted nothing, of which SGLang reads the number before its root: that of no node of it."""
    several = plans(nodes=2) | {"longest": SimpleNamespace(inputs={}, buckets=(4,), size={"N": NODES + 1}.get)}
    states, accepted = RecurrentStates(ringed(), several), torch.tensor([2, 1, 0], dtype=torch.int32)
    states.commit("attention", ROWS, accepted, torch.tensor([10, 20, 0]))
    (said,) = told
    assert said["lens"] is accepted
    assert (said["nodes"], said["index"].shape) == (NODES + 1, (len(ROWS), NODES + 1))
    numbers = said["index"].flatten()
    assert numbers.tolist() == [*range(len(ROWS) * (NODES + 1))]
    assert numbers.as_strided((1,), (1,), numbers.storage_offset() - 1).tolist() == [-1]
    RecurrentStates(worker(), several).commit("attention", ROWS, accepted, torch.tensor([10, 20, 0]))
    assert told[-1]["lens"].tolist() == [2, 1, 1], "what is accepted last has a number elsewhere"


def test_a_ring_holds_the_records_of_a_step() -> None:
    assert (ring_of(worker()), ring_of(ringed(16))) == (0, 16)
    assert not [*misfits(plans(), ringed(NODES))]
    (found,) = misfits(plans(nodes=9), ringed())
    assert found == "a step leaves records of 9 nodes, rings have room for 8 (--linear-replayssm-cache-len)"


@pytest.mark.parametrize("told", [(False, False), (True, False), (False, True)], indirect=True)
def test_states_of_prefixes_are_those_of_ends_or_of_intervals(
    told: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    assert not told
    kept, uncached = request.node.callspec.params["told"]
    assert kept_at_ends(worker()) == (not kept and not uncached)
    assert not kept_at_ends(SimpleNamespace(req_to_token_pool=SimpleNamespace()))


def test_states_of_crossed_intervals_go_where_the_host_says(told: list[dict[str, Any]]) -> None:
    """Into the same memory at every step; a smaller batch leaves nothing of the one before."""
    states = RecurrentStates(worker(), plans())
    lens, lengths = torch.ones(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    states.commit("attention", ROWS, lens, lengths)
    states._tracked.fill_(5)  # type: ignore[union-attr]
    states.say(SimpleNamespace())
    states.commit("attention", ROWS, lens, lengths)
    first, second = (said["batch"].mamba_track_indices for said in told)
    assert second.tolist() == [9, -1, -1]
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.usefixtures("told")
def test_a_dry_step_has_states_of_its_own() -> None:
    idle = worker()
    mapping = idle.req_to_token_pool.req_index_to_mamba_index_mapping
    before = mapping.clone()
    with own_states(idle, torch.tensor([1, 2])):
        assert mapping.tolist() == [0, 1, 2, 5, 4, 3]
    assert torch.equal(mapping, before)
    with_rings = ringed()
    with own_states(with_rings, torch.tensor([1, 2])):
        cursors = [getattr(with_rings.req_to_token_pool.mamba_pool, name) for name in CURSORS]
        assert [each.tolist() for each in cursors] == [[number, 0, 0, *[number] * 3] for number in (1, 2, 3)]
    with (
        pytest.raises(RuntimeError, match="2 texts need as many states, there are 1"),
        own_states(worker(slots=1), torch.tensor([1, 2])),
    ):
        pass


def test_a_text_of_the_dry_step_begins_with_states_of_a_new_request() -> None:
    cleared, idle = list[list[int]](), worker()
    idle.req_to_token_pool.mamba_pool.clear_slots = lambda slots: cleared.append(slots.tolist())
    clear(idle, torch.tensor([1, 3]))
    assert cleared == [[7, 5]]
    clear(SimpleNamespace(req_to_token_pool=SimpleNamespace()), torch.tensor([1, 3]))


@pytest.mark.parametrize("topk", [1, 4])
def test_chains_have_links_where_a_server_has_trees(topk: int) -> None:
    """SGLang's layers take a step for a tree where the server's are."""
    linear = SimpleNamespace(topk=topk, init_forward_metadata=lambda batch: None)
    hybrid = SimpleNamespace(
        full_attn_backend="before", linear_attn_backend=linear, attn_backend_list=["before", linear]
    )
    info = SimpleNamespace(retrieve_next_token=None, retrieve_next_sibling=None)
    batch = SimpleNamespace(batch_size=2, spec_info=info, req_pool_indices=ROWS)
    both = BesideStates(hybrid).over("prepared", batch, NODES)
    assert (both.full_attn_backend, both.attn_backend_list) == ("prepared", ["prepared", linear])
    assert hybrid.full_attn_backend == "before", "the server's own steps have theirs"
    if topk == 1:
        assert info.retrieve_next_token is None
        return
    assert info.retrieve_next_token.tolist() == [[1, 2, -1]] * 2
    assert info.retrieve_next_sibling.tolist() == [[-1] * 3] * 2


@dataclass(frozen=True)
class States:
    """SGLang's states of all layers, as far as a step of fewer nodes has others."""

    temporal: torch.Tensor
    intermediate_ssm: torch.Tensor | None


@pytest.mark.parametrize("nodes", [1, 3, 4])
def test_a_step_of_fewer_nodes_has_snapshots_as_kernels_write_them(nodes: int) -> None:
    """They take a request to have as many as the step has nodes: of row r node n is r * N + n; the commit reads it."""
    layers, rows, most, shape = 2, 5, 4, (3, 2)
    states = States(torch.zeros(1), torch.full((layers, rows, most, *shape), torch.nan))
    pool = SimpleNamespace(mamba_pool=SimpleNamespace(mamba_cache=states, size=8))
    linear = SimpleNamespace(req_to_token_pool=pool, topk=1)
    hybrid = SimpleNamespace(full_attn_backend="full", linear_attn_backend=linear, attn_backend_list=["full", linear])
    both = sized(hybrid, nodes)
    of_step = both.linear_attn_backend.req_to_token_pool.mamba_pool
    snapshots = of_step.mamba_cache.intermediate_ssm
    assert both.attn_backend_list == ["full", both.linear_attn_backend]
    assert (of_step.size, of_step.mamba_cache.temporal is states.temporal) == (8, True)
    assert (snapshots.shape, snapshots.is_contiguous()) == ((layers, rows, nodes, *shape), True)
    for layer in range(layers):
        written = snapshots[layer].flatten(0, 1)
        for row, node in product(range(rows), range(nodes)):
            written[row * nodes + node] = 100 * layer + 10 * row + node
    expected = torch.tensor([[[100 * at + 10 * row + n for n in range(nodes)] for row in range(rows)] for at in (0, 1)])
    assert torch.equal(snapshots[..., 0, 0].int(), expected.int())
    left = states.intermediate_ssm
    assert left is not None and snapshots.data_ptr() == left.data_ptr(), "no memory of its own"
    assert pool.mamba_pool.mamba_cache is states and hybrid.linear_attn_backend is linear
    verify = SimpleNamespace()
    of_shape = Roles([], None, verify, states=hybrid).sized(nodes - 1, 1, nodes).states
    assert of_shape.linear_attn_backend.req_to_token_pool.mamba_pool.mamba_cache.intermediate_ssm.shape[2] == nodes
    assert Roles([], None, verify).sized(nodes - 1, 1, nodes).states is None
    states = States(torch.zeros(1), None)
    pool.mamba_pool.mamba_cache = states
    assert sized(hybrid, nodes) is hybrid, "records are where they are"


def test_nodes_are_committed_of_the_requests_of_a_step() -> None:
    """A step is as wide as its shape, and padded; the memory of its nodes is another's when they are committed."""
    target = worker()
    target.target_worker.model_runner.ngram_embedding_manager = manager = NgramEmbeddingManager("hasher")
    history = NgramHistory(target, plans(nodes=NODES + 1))
    assert looks_up(target)
    for width, lengths in ((NODES + 1, [2, 0]), (NODES, [1, NODES])):
        tokens = torch.randint(1, 99, (3, width), generator=torch.Generator().manual_seed(width))
        kept = tokens[:2].tolist()
        history.keep(tokens)
        tokens.fill_(-1)
        history.commit(ROWS[:2], torch.tensor(lengths, dtype=torch.int32), width)
        assert manager.committed.pop() == (kept, [4, 2], lengths)


@pytest.mark.parametrize(
    "manager", [{}, {"ngram_embedding_manager": NgramEmbeddingManager()}], ids=["none", "no hasher"]
)
def test_nothing_is_kept_of_a_target_that_looks_no_ngrams_up(manager: dict[str, NgramEmbeddingManager]) -> None:
    target = worker()
    vars(target.target_worker.model_runner).update(manager)
    history = NgramHistory(target, plans())
    assert not looks_up(target)
    history.keep(torch.ones(3, NODES, dtype=torch.int64))
    history.commit(ROWS, torch.ones(3, dtype=torch.int32), NODES)
    assert not any(of.committed for of in manager.values())
