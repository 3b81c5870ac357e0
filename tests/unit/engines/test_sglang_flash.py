"""FlashAttention 3 in SGLang: one schedule for all layers of the target, on a stand-in of SGLang's module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.engines.sglang.attention.roles import Roles
from specc.engines.sglang.attention.step_tables import Sizes, Tables
from specc.engines.sglang.attention.windowed.second_pool import TwoPools

SEAM = "sglang.srt.layers.attention.flashattention_backend"
FLASH = "specc.engines.sglang.attention.prepare.flash"
LAYERS, ROWS, STEPS, PAGE, CONTEXT = 3, 3, 3, 4, 64
LENGTHS = torch.tensor([9, 17, 4])


@dataclass
class Metadata:
    """What the program's preparation says of a forward, with the defaults of SGLang's class."""

    cache_seqlens_int32: Any = None
    max_seq_len_q: int = 1
    max_seq_len_k: int = 0
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    page_table: Any = None
    swa_page_table: Any = None
    swa_out_cache_loc: Any = None


class Layers:
    """A backend object of SGLang's: it knows its heads, and its layers call what SGLang's module names."""

    use_mla, has_softcap, num_splits = False, False, 0
    use_sliding_window_kv_pool = False
    num_attention_heads, num_kv_heads, head_dim, kv_cache_dtype = 8, 2, 16, torch.float32

    def __init__(self, module: ModuleType) -> None:
        self.module, self.made = module, []
        keys, values = torch.zeros(2, 9, 2, 16)
        self.token_to_kv_pool = SimpleNamespace(k_buffer=[keys], v_buffer=[values])
        self.forward_metadata: Any = None
        self.forward_metadata_spec_decode_expand: Any = None

    def _get_scheduler_metadata(self, **given: Any) -> Tensor:
        self.made.append(given | {"cache_seqlens": given["cache_seqlens"].tolist()})
        return torch.tensor([len(self.made)])

    def forward(self) -> list[list[Tensor | None]]:
        """The schedules that each layer's calls get: for the text, and behind it for nodes or branches.

        Every layer says that it sees the whole text, or says nothing of it.
        """
        parts = [part for part in (self.forward_metadata, self.forward_metadata_spec_decode_expand) if part is not None]
        call = self.module.flash_attn_with_kvcache
        seen = [{"window_size": (-1, -1)} if layer % 2 else {} for layer in range(LAYERS)]
        return [[call(q=None, page_table=part.page_table, **window) for part in parts] for window in seen]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """SGLang's module, whose attention returns the schedule that it is given."""
    parts = SEAM.split(".")
    made = [ModuleType(".".join(parts[: end + 1])) for end in range(len(parts))]
    for parent, child in pairwise(made):
        setattr(parent, child.__name__.rpartition(".")[2], child)
    for stand_in in made:
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    vars(made[-1]).update(
        FlashAttentionMetadata=Metadata,
        flash_attn_with_kvcache=lambda *_, scheduler_metadata=None, **__: scheduler_metadata,
    )
    monkeypatch.delitem(sys.modules, FLASH, raising=False)
    yield made[-1]
    sys.modules.pop(FLASH, None)


class Step:
    """A step over three requests, of which `flash` prepares the forwards and `forwards` runs the layers."""

    def __init__(
        self,
        module: ModuleType,
        topk: int = 1,
        nodes: int = STEPS + 1,
        *,
        latent: bool = False,
        places: Tensor | None = None,
    ) -> None:
        slots = torch.arange(5 * CONTEXT, dtype=torch.int32).view(5, CONTEXT)
        self.target, self.drafts, self.extend = (
            Layers(module),
            [Layers(module) for _ in range(STEPS - 1)],
            Layers(module),
        )
        for backend in (self.target, *self.drafts, self.extend):
            backend.use_mla = latent
        roles = Roles(draft=self.drafts, container=None, verify=self.target, extend=self.extend)
        sizes = Sizes(4, STEPS, topk, nodes, PAGE, CONTEXT)
        tables = Tables(slots, sizes) if places is None else TwoPools(slots, sizes, None, places)
        self.flash = import_module(FLASH).Flash(roles, tables)
        self.nodes, self.topk = nodes, topk

    def forwards(self) -> dict[str, list[list[Tensor | None]]]:
        """One step: what the layers of each forward got."""
        batch = SimpleNamespace(batch_size=ROWS, req_pool_indices=torch.arange(1, ROWS + 1), seq_lens=LENGTHS)
        mask = counts = None
        if self.topk > 1:
            mask = torch.zeros(ROWS, self.nodes, self.nodes, dtype=torch.int32)
            counts = torch.ones(ROWS, self.nodes, dtype=torch.int32)
        self.flash._tables.fill(batch)
        self.flash.begin(batch)
        by_forward = {f"draft {step}": self.flash.draft(step, batch).forward() for step in range(STEPS - 1)}
        by_forward["target"] = self.flash.target(batch, self.nodes, mask, counts).forward()
        return by_forward | {"extend": self.flash.extend(batch, LENGTHS, STEPS + 1).forward()}


@pytest.mark.parametrize(("topk", "nodes"), [(1, STEPS + 1), (2, 6)])
def test_all_layers_of_a_captured_target_have_one_schedule(module: ModuleType, topk: int, nodes: int) -> None:
    step, attend = Step(module, topk, nodes), module.flash_attn_with_kvcache
    with step.flash.capturing():
        steps = [step.forwards() for _ in range(2)]
    assert module.flash_attn_with_kvcache is attend

    parts = 1 if topk == 1 else 2
    numbers = [[schedule.item() for schedule in _given(by_forward.pop("target"))] for by_forward in steps]
    made = [sorted(set(of_step)) for of_step in numbers]
    assert made == ([[1], [2]] if parts == 1 else [[1, 2], [3, 4]])
    assert numbers == [of_step[:parts] * LAYERS for of_step in numbers]
    assert not [schedule for by_forward in steps for layers in by_forward.values() for schedule in _given(layers)]
    assert len(step.target.made) == 2 * parts
    assert not any(backend.made for backend in (*step.drafts, step.extend))


def test_packed_rows_are_queries_of_the_request_that_has_them(module: ModuleType) -> None:
    """In one schedule for all layers, which knows no more than the most that a request may have."""
    step = Step(module)
    lens, starts = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([2, 4, 1], [0, 2, 6]))
    batch = SimpleNamespace(batch_size=ROWS, req_pool_indices=torch.arange(1, ROWS + 1), seq_lens=LENGTHS)
    step.flash._tables.fill(batch)
    with step.flash.capturing():
        step.flash.begin(batch)
        schedules = _given(step.flash.packed(batch, STEPS + 1, lens, starts, None, None).forward())
    metadata = step.target.forward_metadata
    assert metadata.cache_seqlens_int32.tolist() == (LENGTHS + lens).tolist()
    assert metadata.cu_seqlens_q.tolist() == [0, 2, 6, 7]
    assert metadata.max_seq_len_q == STEPS + 1
    assert (metadata.cache_seqlens_int32.dtype, metadata.cu_seqlens_q.dtype) == (torch.int32, torch.int32)
    assert len(schedules) == LAYERS and len(step.target.made) == 1
    (made,) = step.target.made
    assert made["cu_seqlens_q"].tolist() == [0, 2, 6, 7] and made["causal"]


def test_packed_rows_of_a_tree_see_the_text_and_what_their_nodes_list(module: ModuleType) -> None:
    """The text by request, and behind it every row by itself; rows of nobody see slot 0."""
    step, nodes, each = Step(module, 2, 6), 6, 3
    lens, starts = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([2, 5, 1], [0, 2, 7]))
    batch = SimpleNamespace(batch_size=ROWS, req_pool_indices=torch.arange(1, ROWS + 1), seq_lens=LENGTHS)
    batch.input_ids = torch.zeros(ROWS * each, dtype=torch.int64)
    mask = torch.arange(ROWS * nodes * nodes, dtype=torch.int32).view(ROWS, nodes, nodes) + 7
    counts = torch.arange(ROWS * nodes, dtype=torch.int32).view(ROWS, nodes) + 100
    step.flash._tables.fill(batch)
    with step.flash.capturing():
        step.flash.begin(batch)
        schedules = _given(step.flash.packed(batch, nodes, lens, starts, mask, counts).forward())
    text, tree = step.target.forward_metadata, step.target.forward_metadata_spec_decode_expand
    assert (text.cache_seqlens_int32.tolist(), text.cu_seqlens_q.tolist()) == (LENGTHS.tolist(), [0, 2, 7, 8])
    assert text.max_seq_len_q == nodes
    rows = [(b, column) for b, count in enumerate(lens.tolist()) for column in range(count)]
    assert tree.page_table.tolist() == [*(mask[place].tolist() for place in rows), [0] * nodes]
    assert tree.cache_seqlens_int32.tolist() == [*(int(counts[place]) for place in rows), 1]
    assert tree.cu_seqlens_q.tolist() == [*range(ROWS * each + 1)]
    assert len(schedules) == 2 * LAYERS and [made["causal"] for made in step.target.made] == [False, False]


@pytest.mark.parametrize("width", [1, STEPS, STEPS + 1])
def test_tokens_of_a_block_see_each_other_and_nothing_behind(module: ModuleType, width: int) -> None:
    """Though the target may verify one more behind them."""
    step, block = Step(module), Layers(module)
    tables = Tables(step.flash._tables.slots, Sizes(4, width - 1, 1, STEPS + 1, PAGE, CONTEXT))
    flash = import_module(FLASH).Flash(Roles((), None, step.target, block=block), tables)
    batch = SimpleNamespace(batch_size=ROWS, req_pool_indices=torch.arange(1, ROWS + 1), seq_lens=LENGTHS)
    tables.fill(batch)
    for of, wide in ((flash.block(batch, width), width), (flash.target(batch, STEPS + 1, None, None), STEPS + 1)):
        metadata = of.forward_metadata
        assert metadata.cache_seqlens_int32.tolist() == (LENGTHS + wide).tolist()
        assert metadata.cache_seqlens_int32.dtype == torch.int32
        assert (metadata.max_seq_len_q, metadata.cu_seqlens_q.tolist()) == (wide, [n * wide for n in range(ROWS + 1)])


def test_layers_that_see_a_window_make_schedules_of_their_own(module: ModuleType) -> None:
    """Among others that share one."""
    step = Step(module)
    with step.flash.capturing():
        step.forwards()
        table, call = step.target.forward_metadata.page_table, module.flash_attn_with_kvcache
        assert call(q=None, page_table=table, window_size=(127, 0)) is None
        assert call(q=None, page_table=table, window_size=(-1, -1)) is not None


def _given(layers: list[list[Tensor | None]]) -> list[Tensor]:
    """The schedules that calls of these layers got, one layer after the other."""
    return [schedule for layer in layers for schedule in layer if schedule is not None]


def test_a_schedule_is_of_the_call_that_gets_it(module: ModuleType) -> None:
    chain, tree = Step(module), Step(module, 2, 6)
    for step in (chain, tree):
        with step.flash.capturing():
            step.forwards()
    shared = {"num_heads": 8, "num_heads_k": 2, "headdim": 16, "qkv_dtype": torch.float32}
    shared |= {"has_softcap": False, "num_splits": 0}
    text = {"batch_size": ROWS, "page_size": PAGE, "max_seqlen_k": CONTEXT}
    nodes = {"batch_size": ROWS * 6, "page_size": 1, "max_seqlen_k": 6, "max_seqlen_q": 1, "causal": False}
    lengths = LENGTHS.tolist()
    expected = shared | text | {"max_seqlen_q": 4, "causal": True, "cache_seqlens": [length + 4 for length in lengths]}
    assert [_without_starts(call) for call in chain.target.made] == [expected]
    assert [_without_starts(call) for call in tree.target.made] == [
        shared | nodes | {"cache_seqlens": [1] * ROWS * 6},
        shared | text | {"max_seqlen_q": 6, "causal": False, "cache_seqlens": lengths},
    ]


def _without_starts(given: dict[str, Any]) -> dict[str, Any]:
    """What a schedule was made of; the starts of queries follow from their number."""
    starts, rows, width = given["cu_seqlens_q"], given["batch_size"], given["max_seqlen_q"]
    assert starts.tolist() == [row * width for row in range(rows + 1)]
    return {name: value for name, value in given.items() if name != "cu_seqlens_q"}


@pytest.mark.parametrize("lacking", ["captured", "mha", "a scheduler", "one width"])
def test_layers_make_their_own_schedules_otherwise(module: ModuleType, lacking: str) -> None:
    """Outside of a capture lengths differ from step to step; over latent rows, or in version 4, SGLang makes none.

    Of layers whose values are narrower than their keys a schedule is nobody's but a layer's own.
    """
    step = Step(module, latent=lacking == "mha")
    if lacking == "a scheduler":
        step.target._get_scheduler_metadata = None  # pyright: ignore[reportAttributeAccessIssue]
    if lacking == "one width":
        step.target.token_to_kv_pool.v_buffer = [torch.zeros(9, 2, 12)]
    if lacking == "captured":
        by_forward = step.forwards()
    else:
        with step.flash.capturing():
            by_forward = step.forwards()
    assert not [schedule for layers in by_forward.values() for schedule in _given(layers)]
    assert not step.target.made


def test_after_a_failed_capture_sglang_has_its_function_again(module: ModuleType) -> None:
    step, attend = Step(module), module.flash_attn_with_kvcache
    with pytest.raises(RuntimeError, match="no memory"), step.flash.capturing():
        _fail(step)
    assert module.flash_attn_with_kvcache is attend
    assert not _given(step.forwards()["target"])


def _fail(step: Step) -> None:
    step.forwards()
    raise RuntimeError("no memory")


@pytest.mark.parametrize("of_draft", [True, False])
def test_layers_with_a_window_read_their_own_pool(module: ModuleType, of_draft: bool) -> None:
    """Of models that have two; a head that has one reads nothing of the second. They have no schedule of others'."""
    places = torch.cat((torch.arange(5 * CONTEXT).flip(0) + PAGE, torch.tensor([-1])))
    step = Step(module, places=places)
    step.target.use_sliding_window_kv_pool = True
    for backend in (*step.drafts, step.extend):
        backend.use_sliding_window_kv_pool = of_draft
    with step.flash.capturing():
        step.forwards()
        seconds = step.target.forward_metadata.swa_page_table
        call = module.flash_attn_with_kvcache
        assert call(q=None, page_table=seconds, window_size=(5, 0)) is None
        assert call(q=None, page_table=step.target.forward_metadata.page_table) is not None
    first = [(row * CONTEXT + length).item() for row, length in enumerate(LENGTHS, 1)]
    written = [[places[slot + token].item() for token in range(STEPS + 1)] for slot in first]
    together = [slot for row in written for slot in row]
    forwards = {"target": (step.target, together), "extend": (step.extend, together)}
    forwards |= {f"draft {i}": (draft, [row[i] for row in written]) for i, draft in enumerate(step.drafts)}
    for name, (backend, slots) in forwards.items():
        metadata = backend.forward_metadata
        if name != "target" and not of_draft:
            assert metadata.swa_page_table is metadata.swa_out_cache_loc is None
            continue
        assert metadata.swa_out_cache_loc.tolist() == slots, name
        for row, length in enumerate(LENGTHS.tolist()):
            reads = range((row + 1) * CONTEXT, (row + 1) * CONTEXT + length + STEPS + 1, PAGE)
            pages = metadata.swa_page_table[row, : len(reads)].tolist()
            assert pages == [places[slot].item() // PAGE for slot in reads], name
