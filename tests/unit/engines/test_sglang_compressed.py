"""DeepSeek-V4's attention, with backends that note what they prepare."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specc.engines.sglang.attention.prepare.compressed import Compressed
from specc.engines.sglang.attention.roles import Roles
from specc.engines.sglang.attention.step_tables import Sizes, Tables

STEPS, NODES = 3, 4
SIZES = Sizes(8, STEPS, 1, NODES, 256, context=512)


class Pool:
    """One with states of entries, which are forgotten for drafts that were not accepted."""

    def __init__(self) -> None:
        self.forgotten = list[tuple[list[int], list[int], list[int], int]]()

    def clear_unaccepted_c128_draft_states(
        self, req_pool_indices: Any, seq_lens: Any, accept_lens: Any, num_draft_tokens: int
    ) -> None:
        given = (req_pool_indices, seq_lens, accept_lens)
        rows, lengths, accepted = (values.tolist() for values in given)
        self.forgotten.append((rows, lengths, accepted, num_draft_tokens))


class DeepseekV4AttnBackend:
    """Takes of the slots of all steps those of its own, unless there is one step."""

    def __init__(self, pool: Pool, step: int = 0) -> None:
        self.token_to_kv_pool, self.step, self.speculative_num_steps = pool, step, STEPS
        self.forward_metadata: Any = "of a prefill"

    def init_forward_metadata(self, batch: Any) -> None:
        steps = self.speculative_num_steps
        slots = batch.out_cache_loc if steps == 1 else batch.out_cache_loc.view(-1, steps)[:, self.step]
        self.forward_metadata = batch.seq_lens.clone(), slots.tolist()


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def backends(pool: Pool) -> list[DeepseekV4AttnBackend]:
    return [DeepseekV4AttnBackend(pool, step) for step in (0, 1, 0, 0)]


class BlockBackend(DeepseekV4AttnBackend):
    """One for blocks, which copies to the device what it has on the host, until it is told that a graph records it."""

    def __init__(self, pool: Pool, why: str = "") -> None:
        super().__init__(pool)
        self.why, self.speculative_num_steps, self.glued = why, 1, False

    def glue_draft_metadata(self) -> str:
        self.glued = not self.why
        return self.why

    def init_forward_metadata(self, batch: Any) -> None:
        assert self.glued
        assert batch.seq_lens_cpu.device.type == "cpu"
        super().init_forward_metadata(batch)


@pytest.fixture
def attention(backends: list[Any]) -> Compressed:
    return Compressed(Roles(backends[:2], object(), *backends[2:]), Tables(torch.zeros(9, 600).int(), SIZES))


def batch(lengths: list[int], slots: int, **info: Any) -> Any:
    rows = torch.arange(1, len(lengths) + 1)
    written = torch.arange(len(lengths) * slots)
    return SimpleNamespace(
        batch_size=len(rows),
        req_pool_indices=rows,
        seq_lens=torch.tensor(lengths),
        out_cache_loc=written,
        spec_info=SimpleNamespace(**info),
    )


def read(backend: Any) -> tuple[list[int], list[int]]:
    lengths, slots = backend.forward_metadata
    return lengths.tolist(), slots


def test_drafts_read_what_they_have_written(attention: Compressed, backends: list[Any]) -> None:
    """Each step a token more, and its own slots alone; SGLang's backends go on to take theirs of all steps."""
    for lengths in ([7, 300], [5], [9, 1]):
        for step in range(STEPS - 1):
            given = batch(lengths, 1)
            ran = attention.draft(step, given)
            expected = [length + step + 1 for length in lengths]
            assert given.seq_lens.tolist() == expected
            assert read(ran) == (expected, [*range(len(lengths))])
    assert [backend.forward_metadata for backend in backends] == ["of a prefill"] * 4
    assert [backend.speculative_num_steps for backend in backends] == [STEPS] * 4


def test_lengths_of_drafts_have_memory_that_stays(attention: Compressed) -> None:
    """Graphs of one size read it, and forwards of a step do not write into each other's."""
    first, second = batch([7, 300], 1), batch([7, 300], 1)
    attention.draft(0, first)
    attention.draft(1, second)
    again = batch([1, 2], 1)
    attention.draft(0, again)
    assert again.seq_lens.data_ptr() == first.seq_lens.data_ptr() != second.seq_lens.data_ptr()
    assert second.seq_lens.tolist() == [9, 302]


def test_the_target_sees_its_nodes(attention: Compressed, backends: list[Any], pool: Pool) -> None:
    backends[2].speculative_num_steps = 1
    ran = attention.target(batch([7, 300], NODES), NODES, None, None)
    assert ran is backends[2]
    assert read(ran) == ([7, 300], [*range(2 * NODES)])
    assert not pool.forgotten


def test_states_of_drafts_that_were_not_accepted_are_forgotten(
    attention: Compressed, backends: list[Any], pool: Pool
) -> None:
    """Behind the texts as they were before the step, ahead of the draft's forward."""
    backends[3].speculative_num_steps = 1
    accepted = torch.tensor([4, 1], dtype=torch.int32)
    given = batch([7 + NODES, 300 + NODES], NODES, num_accept_tokens=accepted)
    ran = attention.extend(given, torch.tensor([7, 300]), NODES)
    assert ran is backends[3]
    assert read(ran) == ([11, 304], [*range(2 * NODES)])
    assert pool.forgotten == [([1, 2], [7, 300], [4, 1], NODES)]


def test_blocks_wait_for_no_host(backends: list[Any], pool: Pool) -> None:
    """Lengths of the host are there for SGLang's checks alone, and SGLang's own forwards stay as they are."""
    block = BlockBackend(pool)
    roles = Roles([], None, backends[2], block=block)
    filled = Compressed(roles, Tables(torch.zeros(9, 600).int(), SIZES))
    for lengths in ([7, 300], [5]):
        given = batch(lengths, STEPS)
        ran = filled.block(given, STEPS)
        assert read(ran) == (lengths, [*range(len(lengths) * STEPS)])
        assert given.seq_lens_cpu.shape == (len(lengths),)
    assert (block.glued, block.forward_metadata) == (False, "of a prefill")


@pytest.mark.parametrize(
    "block", [BlockBackend(Pool(), "a request window"), DeepseekV4AttnBackend(Pool())], ids=["beside", "older"]
)
def test_blocks_whose_metadata_is_the_hosts(block: Any, backends: list[Any]) -> None:
    """A server may have more beside, and older releases always make it there."""
    with pytest.raises(ValueError, match="dsv4 over blocks is not served with"):
        Compressed(Roles([], None, backends[2], block=block), Tables(torch.zeros(9, 600).int(), SIZES))
