"""flashinfer in SGLang without either: wrappers note how they were planned, beside what their kernels would read."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.engines.sglang.attention import step_tables
from specc.engines.sglang.attention.roles import Roles

ROWS, COLUMNS, BUCKET = 8, 120, 4
BACKEND = "sglang.srt.layers.attention.flashinfer_backend"
MODULE = "specc.engines.sglang.attention.prepare.flashinfer"


class Wrapper:
    """A wrapper in graph mode: `plan` loads kernels, `keys` are those of the last plan."""

    def __init__(self, workspace: Tensor, layout: str, **given: Any) -> None:
        assert (layout, given.pop("use_cuda_graph"), given.pop("backend")) == ("NHD", True, "fa2")
        self.given, self.keys, self.loaded = given, None, False
        self._int_workspace_buffer, self._pin_memory_int_workspace_buffer = torch.zeros(1), torch.zeros(1)

    def plan(self, *given: Any, **kinds: Any) -> None:
        self.loaded = True

    def buffer(self, name: str) -> Tensor:
        """The buffer of that name, in the spelling of either wrapper."""
        return next(self.given[key] for key in (f"{name}_buffer", f"{name}_buf") if key in self.given)

    def lengths(self) -> list[int]:
        """Keys of each list, as kernels find them on the device."""
        starts, lasts = self.buffer("paged_kv_indptr"), self.buffer("paged_kv_last_page_len")
        return (starts[1:] - starts[:-1] - 1 + lasts).tolist()


def planned(wrapper: Wrapper, sums: Tensor, buffers: tuple[Tensor, ...]) -> None:
    """Note a plan, which copies nothing: what it is given to copy is what the wrapper has, or is empty."""
    assert wrapper.loaded and sums.dtype == torch.int32 and int(sums[0]) == 0
    assert all(any(buffer is own for own in wrapper.given.values()) or not buffer.numel() for buffer in buffers)
    wrapper.keys = (sums[1:] - sums[:-1]).tolist()


def fast_decode_plan(
    wrapper: Wrapper,
    starts: Tensor,
    slots: Tensor,
    lasts: Tensor,
    *sizes: int,
    global_override_indptr_cpu: Tensor,
    **_: Any,
) -> None:
    assert sizes == (8, 2, 64, 1)
    planned(wrapper, global_override_indptr_cpu, (starts, slots, lasts))


def fast_prefill_plan(
    wrapper: Wrapper, queries: Tensor, starts: Tensor, slots: Tensor, lasts: Tensor, *sizes: int, **host: Any
) -> None:
    assert sizes == (8, 2, 64, 1)
    planned(wrapper, host["kv_indptr_host"], (queries, starts, slots, lasts))
    assert host["qo_indptr_host"].tolist() == queries.tolist() == list(range(0, queries[-1] + 1, host["max_q_len"]))
    assert host["kv_lens_host"].tolist() == wrapper.keys and host["max_kv_len"] == max(wrapper.keys)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, over stand-ins for SGLang's."""
    stand_in: Any = ModuleType(BACKEND)
    stand_in.BatchDecodeWithPagedKVCacheWrapper = stand_in.BatchPrefillWithPagedKVCacheWrapper = Wrapper
    stand_in.fast_decode_plan, stand_in.fast_prefill_plan = fast_decode_plan, fast_prefill_plan
    stand_in.DecodeMetadata = lambda wrappers: SimpleNamespace(wrapper=wrappers[0])
    stand_in.PrefillMetadata = lambda wrappers, use_ragged, extend_no_prefix: SimpleNamespace(wrapper=wrappers[0])
    parts = BACKEND.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
    monkeypatch.setitem(sys.modules, BACKEND, stand_in)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE)


class FlashInferAttnBackend(SimpleNamespace):
    """SGLang's, as far as it is read."""


class TritonAttnBackend(SimpleNamespace):
    """Another."""


def backend() -> FlashInferAttnBackend:
    sizes = SimpleNamespace(num_qo_heads=8, num_kv_heads=2, head_dim=64, data_type="bf16", q_data_type="bf16")
    return FlashInferAttnBackend(
        workspace_buffer=torch.zeros(8),
        decode_backend="fa2",
        prefill_backend="fa2",
        decode_use_tensor_cores=True,
        disable_cuda_graph_kv_split=False,
        indices_updater_decode=sizes,
        indices_updater_prefill=sizes,
    )


def made(module: Any, topk: int, *, verify: Any = None) -> tuple[Any, Roles, step_tables.Sizes]:
    sizes = step_tables.Sizes(ROWS, 3, topk, 4 if topk == 1 else 7, 1, context=COLUMNS - 8)
    slots = torch.arange(9 * COLUMNS, dtype=torch.int32).view(9, COLUMNS)
    roles = Roles([backend(), backend()], None, verify or backend(), backend())
    return module.Flashinfer(roles, step_tables.Tables(slots, sizes)), roles, sizes


def batch(lengths: list[int]) -> Any:
    rows = torch.arange(1, len(lengths) + 1) * (torch.tensor(lengths) > 0)
    return SimpleNamespace(batch_size=len(lengths), req_pool_indices=rows, seq_lens=torch.tensor(lengths))


@pytest.mark.parametrize("topk", [1, 3])
def test_what_is_planned_is_what_kernels_read(flashinfer: Any, topk: int) -> None:
    attention, roles, sizes = made(flashinfer, topk)
    mask = torch.ones(BUCKET, sizes.nodes, sizes.nodes, dtype=torch.bool) if topk > 1 else None
    for lengths in ([5, 60, 1, 0], [7, 63, 2, 0], [100, 0, 0, 0]):
        attention.plan(BUCKET, lengths)
        of = batch(lengths)
        attention.begin(of)
        for step in range(2):
            planned_backend = attention.draft(step, of)
            assert planned_backend is roles.draft[step]
            wanted = [length + step + 1 for length in lengths for _ in range(topk)]
            assert (
                planned_backend.forward_metadata.wrapper.keys
                == planned_backend.forward_metadata.wrapper.lengths()
                == wanted
            )
        for role, planned_backend, width in (
            ("verify", attention.target(of, sizes.nodes, mask, None), sizes.nodes),
            ("extend", attention.extend(of, of.seq_lens, 4), 4),
        ):
            assert planned_backend is getattr(roles, role)
            wrapper = planned_backend.forward_metadata.wrapper
            assert wrapper.keys == wrapper.lengths() == [length + width for length in lengths]
            assert ("custom_mask_buf" in wrapper.given) == (role == "verify" and topk > 1)


@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("beside", [False, True])
def test_blocks_are_planned_for_their_tokens(flashinfer: Any, width: int, beside: bool) -> None:
    """Of which there may be fewer than the target verifies, on the same backend or beside another."""
    sizes = step_tables.Sizes(ROWS, width - 1, 1, 4, 1, context=COLUMNS - 8)
    slots = torch.arange(9 * COLUMNS, dtype=torch.int32).view(9, COLUMNS)
    roles = Roles((), None, TritonAttnBackend() if beside else backend(), block=backend())
    attention = flashinfer.Flashinfer(roles, step_tables.Tables(slots, sizes))
    for lengths in ([5, 60, 1, 0], [7, 63, 2, 0]):
        attention.plan(BUCKET, lengths)
        of = batch(lengths)
        attention.begin(of)
        planned_backend = attention.block(of, width)
        assert planned_backend is roles.block
        wrapper = planned_backend.forward_metadata.wrapper
        assert wrapper.keys == wrapper.lengths() == [length + width for length in lengths]
        assert "custom_mask_buf" not in wrapper.given
        if not beside:
            wrapper = attention.target(of, 4, None, None).forward_metadata.wrapper
            assert wrapper.keys == wrapper.lengths() == [length + 4 for length in lengths]


def test_steps_before_the_first_are_planned_for_padding(flashinfer: Any) -> None:
    """Sizes of batch follow each other then, and each forward has one memory for all of them."""
    attention, roles, _ = made(flashinfer, 1)
    seen = []
    for rows in (4, 4, 2):
        of = batch([0] * rows)
        attention.begin(of)
        wrapper = attention.extend(of, of.seq_lens, 4).forward_metadata.wrapper
        assert wrapper.keys == wrapper.lengths() == [4] * rows
        seen.append(wrapper)
    assert seen[0] is seen[1] is not seen[2]
    assert seen[0]._int_workspace_buffer is seen[2]._int_workspace_buffer
    draft = attention.draft(0, of).forward_metadata.wrapper
    assert draft._int_workspace_buffer is not seen[2]._int_workspace_buffer
    assert roles.draft[0].forward_metadata.wrapper is draft


def test_only_roles_that_run_on_it_are_planned(flashinfer: Any) -> None:
    attention, _, _ = made(flashinfer, 1, verify=TritonAttnBackend())
    attention.plan(BUCKET, [3, 0, 0, 0])
    assert attention._made[BUCKET].target is None and attention._made[BUCKET].extend is not None
    assert len(attention._made[BUCKET].draft) == 2
