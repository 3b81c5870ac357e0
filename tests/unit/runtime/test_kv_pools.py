"""KV buffers: what bind checks of them, where their addresses go, and what ops do to them through the runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.plans import PAGE, chain_plan, node_of, program_of, tree_plan
from torch import Tensor

from specc.runtime.backends.cuda import argument_value
from specc.runtime.batch import Batch
from specc.runtime.entry.frame import Frame
from specc.runtime.errors import BatchError, BindError, ForwardContractError, PlanError
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.plan import kv_pointers
from specc.runtime.step import Step

CPU = torch.device("cpu")
SLOTS = 200
Pools = dict[str, list[Tensor]]


def make_pools(seed: int = 0, slots: int = SLOTS) -> Pools:
    """Two layers of keys and values of each model, every row different from all others."""
    source = torch.Generator().manual_seed(seed)
    return {
        owner: [torch.randint(1 << 20, (slots, 2, 2), generator=source).float() for _ in range(4)]
        for owner in ("target", "draft")
    }


def make_table(seed: int = 0) -> Tensor:
    """Scattered slots for 5 pool rows of 39 positions; row 0 is padding."""
    slots = torch.randperm(SLOTS - 1, generator=torch.Generator().manual_seed(seed)) + 1
    table = torch.zeros(6, 39, dtype=torch.int32)
    table[1:] = slots[: 5 * 39].view(5, 39)
    return table


def told_plan(**how: Any) -> dict[str, Any]:
    """`tree_plan`, but that nobody drafts its tree: a test writes tokens and parents where they are kept."""
    plan = tree_plan(**how)
    drafted = node_of(plan, "draft_topk")
    drafted["ops"] = [op for op in drafted["ops"] if op["op"] == "tree.mask"]
    return plan


class Target:
    """A target that wants `wanted` after every node and names experts per node; it keeps the masks it saw.

    Its draft says nothing.
    """

    def __init__(self, wanted: Tensor) -> None:
        self.wanted, self.masks = wanted, list[Tensor]()

    def target(self, *, slots: Tensor, mask: Tensor, **others: Any) -> SimpleNamespace:
        self.masks.append(mask.clone())
        logits = torch.nn.functional.one_hot(self.wanted, 16).float()
        return SimpleNamespace(
            logits=logits, routed_experts=torch.arange(slots.numel() * 6, dtype=torch.int32).view(-1, 5, 2, 3)
        )

    def draft(self, *, rows: Tensor, **others: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(len(rows), 2, 16))

    def extend(self, *, rows: Tensor, **others: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(len(rows), 16))


def bind(pools: Any, plan: dict[str, Any] | None = None, engine: object = None, table: Tensor | None = None) -> Step:
    program = program_of(read_plan(plan or told_plan()))
    return program.bind(engine or Target(torch.zeros(2, 5)), make_table() if table is None else table, pools)


def test_addresses_are_in_the_tables_from_bind_on() -> None:
    pools = make_pools()
    step = bind(pools)
    for owner, buffers in pools.items():
        assert step._arena.buffer(f"kv.{owner}.pointers").tolist() == [buffer.data_ptr() for buffer in buffers]


def test_only_bound_owners_are_wanted() -> None:
    plan = tree_plan()
    plan["kv_pools"]["draft"]["bound"] = False
    node_of(plan, "duplicate_tail")["args"].pop()
    plan["kernels"]["duplicate_tail"]["arguments"].pop()
    pools = make_pools()
    step = bind({"target": pools["target"], "draft": "anything at all"}, plan)
    assert set(step._frame(1).kv) == {"target"}
    callbacks = SimpleNamespace(**dict.fromkeys(METHODS, lambda **operands: None))
    assert bind(None, chain_plan(), callbacks, table=torch.zeros(8, 96).int())


METHODS = ("draft", "target", "extend", "prefill_target", "prefill_draft")


def interleaved(buffers: list[Tensor]) -> list[Tensor]:
    """Keys and values of a layer in one tensor [slots, 2, ...], as some engines keep them."""
    return [half for i in (0, 2) for half in torch.stack(buffers[i : i + 2], dim=1).unbind(1)]


def replaced(index: int, change: Callable[[Tensor], Tensor]) -> Callable[[Pools], Any]:
    """Change one of the target's buffers."""
    return lambda pools: pools | {"target": [change(t) if i == index else t for i, t in enumerate(pools["target"])]}


def misaligned(tensor: Tensor) -> Tensor:
    spare = torch.empty(tensor.numel() + 1)
    return spare[1:].view(tensor.shape)


FAULTS: list[tuple[Callable[[Pools], Any], str]] = [
    (lambda pools: None, r"kv_pools has no 'draft': the program moves KV rows of that model in 4 tensors, 2 layers"),
    (lambda pools: {"draft": pools["draft"]}, "kv_pools has no 'target'"),
    (lambda pools: pools | {"drafts": []}, "kv_pools has 'drafts'; the program knows the KV buffers of draft, target"),
    (lambda pools: pools | {"draft": pools["draft"][1:]}, r"kv_pools\['draft'\] has 3 tensors, the program wants 4"),
    (lambda pools: pools | {"draft": []}, "has 0 tensors"),
    (replaced(2, lambda t: t.half()), r"kv_pools\['target'\]\[2\] is float16, the program moves float32"),
    (replaced(1, lambda t: t.view(torch.uint8)), r"\[1\] is uint8"),
    (replaced(3, lambda t: t.to("meta")), r"\[3\] is on meta, the program on cpu"),
    (replaced(0, lambda t: t[0, 0]), r"\[0\] has shape \[2\], expected \[slots, ...\]"),
    (replaced(0, lambda t: t[:0]), r"\[0\] has shape \[0, 2, 2\]"),
    (replaced(1, lambda t: t[:, :1].contiguous()), r"\[1\] has 8 bytes per slot, the program moves 16"),
    (replaced(1, lambda t: t.repeat(1, 2, 1)), r"\[1\] has 32 bytes per slot, the program moves 16"),
    (replaced(1, lambda t: t.transpose(1, 2)), r"\[1\] has strides \[4, 1, 2\], expected the row"),
    (replaced(0, lambda t: t[:1].expand(SLOTS, 2, 2)), r"\[0\] has 0 bytes from slot to slot, less than the 16"),
    (replaced(2, misaligned), r"\[2\] is at 0x[0-9a-f]+4 with 16 bytes .*not multiples of 16"),
    (
        lambda pools: {owner: [torch.zeros(SLOTS, 5)[:, :4] for _ in range(4)] for owner in pools},
        r"with 20 bytes from slot to slot, not multiples of 16",
    ),
    (replaced(1, lambda t: t[1:].clone()), r"\[1\] has 199 slots, the first buffer 200"),
    (replaced(1, lambda t: torch.zeros(SLOTS, 8)[:, :4]), r"\[1\] has 32 bytes from slot to slot, the first buffer 16"),
    (
        lambda pools: pools | {"target": pools["target"][:1] * 4},
        r"\['target'\]\[0\] and kv_pools\['target'\]\[1\] share",
    ),
    (lambda pools: pools | {"draft": pools["target"]}, r"kv_pools\['draft'\]\[0\] and kv_pools\['target'\]\[0\] share"),
    (replaced(3, lambda t: None), r"\[3\] is a NoneType, not a tensor"),
    (replaced(3, lambda t: t.tolist()), r"\[3\] is a list, not a tensor"),
    (replaced(0, lambda t: t.to_sparse()), r"\[0\] is torch.sparse_coo, not a dense tensor"),
    (lambda pools: list(pools.items()), "kv_pools is a list, not a mapping by name"),
    (lambda pools: 3, "kv_pools is a int, not a mapping"),
    (lambda pools: pools | {3: []}, "kv_pools has 3; the program knows"),
    (lambda pools: pools | {"draft": 3}, r"kv_pools\['draft'\] is a int, the program wants 4 tensors"),
    (lambda pools: pools | {"draft": "abcd"}, r"kv_pools\['draft'\]\[0\] is a str, not a tensor"),
    (lambda pools: pools | {"draft": iter(pools["draft"])}, r"kv_pools\['draft'\] is a list_iterator"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_buffers_that_do_not_fit(change: Callable[[Pools], Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        bind(change(make_pools()))


def in_one(shape: tuple[int, ...], starts: list[int], stride: int) -> list[Tensor]:
    """Tensors of one storage, with the same number of elements from slot to slot."""
    memory = torch.zeros(max(starts) + shape[0] * stride)
    strides = (stride, *torch.zeros(shape[1:]).stride())
    return [memory.as_strided(shape, strides, start) for start in starts]


@pytest.mark.parametrize(
    ("starts", "stride", "apart"),
    [
        ([0, 4, 8, 12], 16, True),  # K and V of two layers side by side in a slot
        ([0, 4, 8, 12], 12, False),  # the last one's row reaches into the next slot's first
        ([0, 4, 800, 804], 8, True),  # a tensor [slots, 2, ...] per layer
        ([0, 4, 792, 804], 8, False),  # by one slot
        ([0, 400, 800, 1200], 4, True),  # one after the other
        ([0, 400, 800, 1196], 4, False),
    ],
)
def test_buffers_of_one_storage(starts: list[int], stride: int, apart: bool) -> None:
    pools = make_pools() | {"target": in_one((100, 2, 2), starts, stride)}
    with nullcontext() if apart else pytest.raises(BindError, match="share memory"):
        bind(pools)


def test_a_buffer_in_a_table() -> None:
    pools, memory = make_pools(), torch.zeros(6 * 39 + SLOTS * 4, dtype=torch.int32)
    table = memory[: 6 * 39].view(6, 39)
    pools["draft"][2] = memory[232:][: SLOTS * 4].view(torch.float32).view(SLOTS, 2, 2)
    with pytest.raises(BindError, match=r"kv_pools\['draft'\]\[2\] and req_to_token share memory"):
        bind(pools, table=table)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("kept", [True, False])
def test_eight_bit_floats_may_be_kept_as_bytes(dtype: str, kept: bool) -> None:
    """Rows of 12 bytes need an alignment of 4 alone."""
    plan = told_plan(heads=3, kv_dtype=dtype)
    buffers = [torch.zeros(SLOTS, 12, dtype=torch.uint8 if kept else getattr(torch, dtype)) for _ in range(8)]
    bind({"target": buffers[:4], "draft": buffers[4:]}, plan)
    odd = [torch.zeros(SLOTS * 12 + 1, dtype=torch.uint8)[1:].view(SLOTS, 12) for _ in range(4)]
    with pytest.raises(BindError, match="not multiples of 4"):
        bind({"target": odd, "draft": buffers[4:]}, plan)


def test_buffers_that_move_are_refused() -> None:
    pools = make_pools()
    step = bind(pools, engine=Target(torch.zeros(1, 5, dtype=torch.int64)))
    step._arena.view("parent", 1).fill_(-1)
    step.decode(Batch([3], [2]))
    pools["draft"][3].set_(pools["draft"][3].clone())
    with pytest.raises(BindError, match="KV buffers have moved since bind"):
        step.decode(Batch([3], [2]))


def test_the_step_keeps_the_buffers() -> None:
    pools = make_pools()
    step = bind(pools)
    kept = [tensor for buffers in step._frame(1).kv.values() for tensor in buffers]
    assert [a is b for a, b in zip(kept, [*pools["draft"], *pools["target"]], strict=True)] == [True] * 8


@pytest.mark.parametrize("layout", [list, interleaved])
@pytest.mark.parametrize("seed", range(6))
def test_rows_move_as_a_loop_moves_them(layout: Callable[[list[Tensor]], list[Tensor]], seed: int) -> None:
    """Random trees through a whole step: the accepted path, the tails of branches, and nothing else."""
    source = torch.Generator().manual_seed(seed)
    pools = {owner: layout(buffers) for owner, buffers in make_pools(seed).items()}
    before = {owner: [t.clone() for t in buffers] for owner, buffers in pools.items()}
    table, rows = make_table(seed), [4, 2, 5]
    lengths = torch.randint(1, 20, (3,), generator=source).tolist()
    tokens = torch.randint(0, 3, (3, 5), generator=source)
    parent = torch.tensor([[-1, *(int(torch.randint(-1, c, (), generator=source)) for c in range(1, 5))] for _ in rows])
    engine = Target(torch.randint(0, 3, (3, 5), generator=source))
    step = bind(pools, engine=engine, table=table)
    room = step._plan.kv.branch_room
    step._arena.view("tokens", 3).copy_(tokens)
    step._arena.view("parent", 3).copy_(parent)
    result = step.decode(Batch(rows, lengths))
    for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        path = accepted(tokens[b].tolist(), engine.wanted[b].tolist(), parent[b].tolist())
        assert result.accept_lens[b] == len(path)
        assert result.predict[b].tolist()[: len(path)] == [int(engine.wanted[b, node]) for node in path]
        experts = result.routed_experts[b, : len(path)].tolist()
        assert experts == [(torch.arange(6).view(2, 3) + (b * 5 + node) * 6).tolist() for node in path]
        slots = table[row].tolist()
        for kind, held in enumerate(pools["target"]):
            old = before["target"][kind].clone()
            for i, node in enumerate(path):
                before["target"][kind][slots[length + i]] = old[slots[length + node]]
            assert held.shape == old.shape
        base = length + 1  # the draft reads the bonus token, too
        tail = base % PAGE
        run = -(-(tail + room) // PAGE) * PAGE
        for old in before["draft"]:
            for i in range(tail):
                old[slots[base - tail + run + i]] = old[slots[base - tail + i]]
    for owner, buffers in pools.items():
        assert all(torch.equal(new, old) for new, old in zip(buffers, before[owner], strict=True)), owner


def accepted(tokens: list[int], wanted: list[int], parent: list[int]) -> list[int]:
    """Columns of the accepted path of one request, at most three."""
    path = [0]
    while len(path) < 3:
        fits = [c for c in range(1, 5) if parent[c] == path[-1] and tokens[c] == wanted[path[-1]]]
        if not fits:
            return path
        path.append(fits[0])
    return path


def test_the_target_gets_the_mask() -> None:
    engine = Target(torch.zeros(2, 5, dtype=torch.int64))
    step = bind(make_pools(), engine=engine)
    step._arena.view("tokens", 2).zero_()
    step._arena.view("parent", 2).copy_(torch.tensor([[-1, 0, 0, 1, 3], [-1, -1, 1, 2, 2]]))
    step.decode(Batch([1, 2], [3, 4]))
    (mask,) = engine.masks
    assert mask.dtype == torch.uint8
    assert mask[..., 0].tolist() == [[0b1, 0b11, 0b101, 0b1011, 0b11011], [0b1, 0b11, 0b111, 0b1111, 0b10111]]


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (None, r"target returned routed_experts None, expected i32\[B, N, 2, 3\]"),
        (torch.zeros(2, 5, 2, 3), r"routed_experts as torch.float32\[2, 5, 2, 3\], expected torch.int32"),
        (torch.zeros(2, 5, 2, dtype=torch.int32), r"routed_experts as .*int32\[2, 5, 2\], expected .*\[2, 5, 2, 3\]"),
    ],
)
def test_extra_results_are_held_to_the_plan(experts: Tensor | None, message: str) -> None:
    engine = Target(torch.zeros(2, 5, dtype=torch.int64))
    real = engine.target
    engine.target = lambda **a: SimpleNamespace(logits=real(**a).logits, routed_experts=experts)
    step = bind(make_pools(), engine=engine)
    step._arena.view("parent", 2).fill_(-1)
    with pytest.raises(ForwardContractError, match=message):
        step.decode(Batch([1, 2], [3, 4]))


@pytest.mark.parametrize(("longest", "room"), [(None, 25), (12, 12), (100, 25)])
def test_a_mask_over_the_whole_text_bounds_the_length(longest: int | None, room: int) -> None:
    plan = told_plan()
    plan["kv"]["longest"] = longest
    step = bind(make_pools(), plan, Target(torch.zeros(1, 5, dtype=torch.int64)))
    step._arena.view("parent", 1).fill_(-1)
    step.decode(Batch([1], [room]))
    with pytest.raises(BatchError, match=f"pool row 1 has length {room + 1}; there is room for {room}"):
        step.decode(Batch([1], [room + 1]))


def test_cuda_kernels_get_the_bytes_between_slots() -> None:
    plan = read_plan(tree_plan())
    pools = {owner: interleaved(buffers) for owner, buffers in make_pools().items()}
    step = bind(pools)
    frame: Frame = step._frame(2)
    (node,) = [node for node in plan.nodes("step") if node.name == "duplicate_tail"]
    assert isinstance(node, Launch)
    *_, pointers, stride = node.args
    assert argument_value(pointers, frame) is step._arena.buffer("kv.draft.pointers")
    assert argument_value(stride, frame) == 32
    assert ctypes.c_int64(argument_value(stride, frame)).value == pools["draft"][0].stride(0) * 4


Json = dict[str, Any]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("kv_pools"), "malformed plan: the plan has no 'kv_pools'"),
        (
            lambda d: d["kv_pools"]["target"].pop("row_bytes"),
            "malformed plan: the plan.kv_pools.target has no 'row_bytes'",
        ),
        (
            lambda d: d["kv_pools"]["target"].update(layers=3),
            "of 'target' are bound, and kv.target.pointers has no room",
        ),
        (lambda d: d["kv_pools"].update(other=d["kv_pools"]["draft"]), "kv.other.pointers has no room"),
        (
            lambda d: d["kv_pools"]["draft"].update(bound=False),
            "'duplicate_tail' reads KV buffers of 'draft', which are not",
        ),
        (lambda d: d["kv_pools"].pop("draft"), "'duplicate_tail' reads KV buffers of 'draft'"),
    ],
)
def test_plans_whose_pools_contradict_them(change: Callable[[Json], object], message: str) -> None:
    data = tree_plan()
    change(data)
    with pytest.raises(PlanError, match=message):
        read_plan(data)


def test_pools_of_a_plan() -> None:
    plan = read_plan(tree_plan(layers=3, kv_dtype="bfloat16"))
    pool = plan.kv_pools["draft"]
    assert (pool.layers, pool.buffers, pool.row_bytes, pool.dtype, pool.bound) == (3, 2, 8, "bfloat16", True)
    assert plan.buffers[kv_pointers("draft")].shape == (6,)
    assert plan.reads("step") == {"req_pool_indices", "seq_lens", "req_to_token"}
