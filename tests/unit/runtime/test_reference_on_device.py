"""References are queued like kernels: none reads a value on the host, and none copies one from there.

Tensors of the device `meta` have no values, so who reads one, or counts what is true, fails. A tensor made of numbers
of the host would be copied; a mode refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from programs import load, passes_to
from random_hybrids import STATES
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specc.compiler.driver.compile import start_module
from specc.compiler.ir.core import Module, Op, Value, is_state, tensor_type
from specc.compiler.ir.nodes import is_collective, is_external
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.runtime.plan.recurrent.state_tables import FOLD, StateTensor, folded_parts
from specc.runtime.plan.recurrent.state_tables import STATES as STATES_OF
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import MOVES, OPS, evaluate

UNBOUNDED = {"C": 40, "T": 11, "M": 9}
ROWS = 3
RANKS: dict[str, Any] = {"logits": "sharded", "tensor_parallel": 2, "outputs": ["logprobs"]}
RANKS |= {role: {"vocab_size": 90, "padded_vocab_size": 96} for role in ("target", "draft")}
TREE: dict[str, Any] = {"topk": 2, "num_draft_tokens": 6, "page_size": 4}
GDN: dict[str, Any] = {"state_layers": 2, "state": STATES["qwen3_next"]}
SAMPLING = ["penalties", "logit_bias", "grammar"]
SCORES = {"outputs": ["logprobs"], "logprobs": "processed", "best_logprobs": 2}
PROGRAMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("EAGLE", {"overlap": True}),
    ("EAGLE", TREE | {"mask": "qlen", "outputs": ["logprobs"]}),
    ("STANDALONE", TREE | {"mask": "bitpacked"}),
    ("STANDALONE", TREE | {"mask": "slots"}),
    ("STANDALONE", TREE | RANKS),
    ("EAGLE", RANKS | {"draft": {"vocab_size": 50, "padded_vocab_size": 64, "token_map": "engine"}}),
    ("EAGLE", TREE | {"mask": "full", "context_length": 64}),
    ("MULTI_LAYER_EAGLE", {}),
    ("DFLASH", {"verify": "target_only", "sampling": ["min_p", "top_p", "top_k"]}),
    ("NGRAM", {"verify": "target_only", "sampling": SAMPLING, "topk": 2, "num_draft_tokens": 5}),
    ("NGRAM", {"verify": "target_only", "verify_rows": "lazy", "topk": 2, "num_draft_tokens": 5}),
    ("FROZEN_KV_MTP", {"verify": "target_only", **SCORES, "draft": {"vocab_size": 24, "token_map": "engine"}}),
    ("EAGLE", {"verify": "rejection", "sampling": ["min_p"]}),
    ("EAGLE", {"verify": "rejection", "draft": {"head": "fp8"}}),
    ("STANDALONE", TREE | {"draft": {"head": "int8"}}),
    ("STANDALONE", {"draft": {"head": "weights"}}),
    ("DFLASH", {"verify": "block"}),
    ("STANDALONE", {"num_steps": [0, 2]}),
    ("EAGLE", {"shapes": [{"num_steps": 3}, {"num_steps": 2, "topk": 2, "num_draft_tokens": 5}]}),
    ("EAGLE", {"budget": 2}),
    ("STANDALONE", {"budget": [2, "all"]}),
    ("EAGLE", {"budget": 2, "verify": "rejection"}),
    ("DFLASH", {"budget": 2}),
    ("DFLASH", TREE),
    ("DSPARK", {}),
    ("DSPARK", {"budget": 2}),
    ("DSPARK", TREE),
    ("DFLASH2", {"verify": "rejection"}),
    ("DFLASH2", {"budget": 2}),
    *(("EAGLE", {"target": GDN | {"state_form": form}}) for form in ("select", "fold", "point")),
    ("NGRAM", {"options": {"corpus": "corpus"}}),
    ("NGRAM", {"topk": 2, "num_draft_tokens": 6}),
    ("NGRAM", {"step": "rotated"}),
    ("NGRAM", {"step": "rotated", "options": {"beyond": "last"}}),
    ("STANDALONE", {"step": "rotated", "tables": {"slots": "block_table"}, "page_size": 4}),
    (
        "STANDALONE",
        {"step": "rotated", "tables": {"carry": {"bonus": {"dtype": "int64"}}}, "target": {"padded_vocab_size": 128}},
    ),
)


class Queued(TorchFunctionMode):
    """Refuses what makes a tensor of numbers of the host."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See the class."""
        if func in (torch.tensor, torch.as_tensor, torch.from_numpy, Tensor.new_tensor):
            raise RuntimeError(f"{func} copies from the host")
        return func(*args, **(kwargs or {}))


def test_the_mode_and_the_device_notice() -> None:
    x = torch.empty(3, device="meta")
    wrong: tuple[Callable[[], object], ...] = (
        lambda: torch.tensor([1.0], device="meta"),
        lambda: x.sum().item(),
        lambda: x[x > 0],
        lambda: x.tolist(),
        lambda: x + torch.zeros(3),
        lambda: bool((x > 0).any()),
    )
    for call in wrong:
        with Queued(), pytest.raises((RuntimeError, NotImplementedError)):
            call()


def modules() -> Iterator[Module]:
    """Programs as algorithms write them, and as they are at the end: one that goes on after it was looked at."""
    for algorithm, keys in PROGRAMS:
        for depth in load(algorithm, **keys).shapes():
            module, steps, ctx = start_module(depth), passes_to("form-kernels", depth), Context(depth)
            typed = next(number for number, step in enumerate(steps, start=1) if step.name == "infer-types")
            for part in (steps[:typed], steps[typed:]):
                run_passes(module, part, ctx, [])
                yield module


def test_every_reference_is_queued() -> None:
    seen: set[str] = set()
    alike: set[object] = set()
    for module in modules():
        for op in module.ops():
            if not is_external(op) and not is_collective(op):
                if (key := (*sizes_of(module, op), *what_it_is(op))) not in alike:
                    run(module, op)
                alike.add(key)
                seen.add(op.opcode)
    # Those that no program has in either place.
    assert (OPS.keys() | MOVES.keys()) - seen <= {"commit.path"}


def sizes_of(module: Module, op: Op) -> Iterator[object]:
    """Sizes of a step, which references know by name, and of the other axes of what an op takes and gives."""
    types = [tensor_type(value) for value in (*op.operands, *op.results) if not is_state(value)]
    axes = {*"ADKNS", *(axis for type_ in types for axis in type_.shape)}
    yield tuple(dim for dim in module.dims.values() if dim.name in axes)
    yield tuple(carry.type for carry in module.carries.values() if carry.name == op.attrs.get("field"))


def what_it_is(op: Op) -> Iterator[object]:
    """All that the device sees of an op; `kernel` says where it runs."""
    yield op.opcode
    yield tuple((name, value) for name, value in op.attrs.items() if name != "kernel")
    yield tuple(value.type for value in (*op.operands, *op.results))


def states_of(op: Op, nodes: int) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
    """The tensors of a layer's state that an op commits: what is kept, and what a verification leaves of each node."""
    matrix = StateTensor("matrix", "f32", (4, 8), (StateTensor("pending", "f32", (4, 8)),))
    for part in folded_parts(op) if op.opcode == FOLD else (matrix,):  # pyright: ignore[reportArgumentType]
        yield (90, *part.shape), DTYPES[part.dtype]
        yield from (((ROWS, nodes, *record.shape), DTYPES[record.dtype]) for record in part.records)


def run(module: Module, op: Op) -> None:
    """The op on tensors of its operands' types; results are of its results'."""
    dims = {dim.name: dim.size for dim in module.dims.values() if dim.size is not None} | {"B": ROWS}

    def meta(type_: Any, **named_sizes: int) -> Tensor:
        sizes = dims | UNBOUNDED | named_sizes
        shape = [sizes[entry] if isinstance(entry, str) else entry for entry in type_.shape]
        return torch.empty(shape, dtype=DTYPES[type_.dtype], device="meta")

    def tensors(values: Sequence[Value]) -> list[Tensor]:
        return [meta(tensor_type(value)) for value in values if not is_state(value)]

    pools = {name: meta(carry.type, B=dims["P"]) for name, carry in module.carries.items()}
    kv = {owner: [torch.empty(90, 2, 3, device="meta")] for owner in ("target", "draft")}
    nodes = dims["N" if "N" in dims else "A"]
    kv[STATES_OF] = [torch.empty(size, dtype=dtype, device="meta") for size, dtype in states_of(op, nodes)]
    with Queued():
        results = evaluate(op.opcode, tuple(tensors(op.operands)), op.attrs, dims, pools, kv)
    wanted = tensors(op.results)
    assert [(r.shape, r.dtype) for r in results] == [(w.shape, w.dtype) for w in wanted], op.opcode
