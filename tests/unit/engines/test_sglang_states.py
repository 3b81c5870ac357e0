"""What SGLang is told of a step whose target keeps recurrent states, and how chains look to its layers."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from specc.engines.sglang.attention.recurrent import BesideStates
from specc.engines.sglang.parts.states import RecurrentStates, own_states

ROWS, NODES = torch.tensor([4, 2, 0]), 3
"""Pool rows of two requests and of padding."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand in for the modules of SGLang's that are imported, and take note of what its commit is given."""
    seen: list[dict[str, Any]] = []

    def commit(worker: Any, batch: Any, accept_lens: Any, accept_index: Any, draft_token_num: int) -> None:
        seen.append({"batch": batch, "lens": accept_lens, "index": accept_index, "nodes": draft_token_num})

    def track(batch: Any) -> None:
        batch.mamba_track_indices = torch.tensor([9, -1])

    mamba = SimpleNamespace(enable_mamba_extra_buffer=True)
    modules: dict[str, dict[str, Any]] = {
        "runtime_context": {
            "get_exec": lambda: SimpleNamespace(mamba=mamba),
            "get_schedule": lambda: SimpleNamespace(page_size=16),
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
    return SimpleNamespace(target_worker="target", req_to_token_pool=pool)


def test_the_commit_is_of_the_last_accepted_nodes_of_chains(told: list[dict[str, Any]]) -> None:
    """Nodes have SGLang's numbers; padding is said to have accepted one, as nothing has the number -1."""
    states = RecurrentStates(worker(), rows=4)
    lengths = torch.tensor([10, 20, 0])
    states.commit(torch.tensor([3, 1, 0], dtype=torch.int32), ROWS, lengths, NODES)
    (said,) = told
    assert said["lens"].tolist() == [3, 1, 1]
    assert said["index"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert said["nodes"] == NODES
    batch = said["batch"]
    assert (batch.forward_mode, batch.tree_cache.page_size) == ("verify", 16)
    assert batch.req_pool_indices is ROWS
    assert batch.seq_lens is lengths
    assert batch.mamba_track_indices.tolist() == [-1, -1, -1], "nobody has said where to"


def test_states_of_crossed_intervals_go_where_the_host_says(told: list[dict[str, Any]]) -> None:
    """Into the same memory at every step; a smaller batch leaves nothing of the one before."""
    states = RecurrentStates(worker(), rows=4)
    lens, lengths = torch.ones(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    states.commit(lens, ROWS, lengths, NODES)
    states._tracked.fill_(5)  # type: ignore[union-attr]
    states.say(SimpleNamespace())
    states.commit(lens, ROWS, lengths, NODES)
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
    with (
        pytest.raises(RuntimeError, match="2 texts need as many states, there are 1"),
        own_states(worker(slots=1), torch.tensor([1, 2])),
    ):
        pass


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
