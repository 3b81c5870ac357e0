"""What is carried: rows in memory and of last nodes, of all widths and dtypes; against the reference ops."""

import torch
from cluster_cases import (
    ANY,
    Drawn,
    TypedBuilder,
    carry,
    check_module,
    choice,
    integer,
    random_batch,
    random_shape,
    small_module,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import quick
from kernel_launcher import Launcher

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import TensorType


def random_ends(module: Module, source: torch.Generator, rows: torch.Tensor, axis: str) -> Drawn:
    """Paths of random lengths over the nodes, in any order; none of padding rows."""
    nodes, width = module.size(axis), module.size("A")
    index = torch.full((len(rows), width), -1, dtype=torch.int32)
    lens = torch.randint(1, width + 1, (len(rows),), generator=source, dtype=torch.int32).masked_fill(rows == 0, 0)
    for b, length in enumerate(lens.tolist()):
        index[b, :length] = b * nodes + torch.randperm(nodes, generator=source)[:length]
    return {"req_pool_indices": rows, "accept_index": index, "accept_lens": lens}


@settings(quick, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_random_phases(launcher: Launcher, seed: int) -> None:
    """What is stored comes from memory or from the last node; rows of last nodes may be wanted in memory as well."""
    source = torch.Generator().manual_seed(seed)
    path, axis = integer(source, 2, 9), choice(source, ("N", "A"))
    module = small_module(N=path + integer(source, 0, 5), A=path)
    rows = module.inputs["req_pool_indices"]
    index = module.add_input("accept_index", TensorType("i32", ("B", "A")))
    lens = module.add_input("accept_lens", TensorType("i32", ("B",)))
    b = TypedBuilder(module)
    with b.phase("commit"):
        for name in [f"field{number}" for number in range(integer(source, 1, 4))]:
            dtype, shape, kind = choice(source, (*ANY, "u8", "i1")), random_shape(source), integer(source, 0, 3)
            carry(module, name, dtype, *shape)
            if kind == 0:
                value = module.add_input(f"{name}_value", module.carries[name].type)
            else:
                nodes = module.add_input(f"{name}_nodes", TensorType(dtype, ("B", axis, *shape)))
                value = b("commit.last", nodes, index, lens, names=(name,))
            if kind < 3:
                b.many(choice(source, ("carry.store", "relay.publish")), rows, value, field=name)
            if kind > 1:
                module.outputs[name] = value
    check_module(launcher, module, source, random_ends(module, source, random_batch(source), axis))


@settings(quick, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_stores_of_one_phase_after_loads_of_another(launcher: Launcher, seed: int) -> None:
    """A step loads fields, hands them out or stores them in others; every field is stored when all have read it."""
    source = torch.Generator().manual_seed(seed)
    module = small_module(K=integer(source, 1, 4))
    rows, b, values = module.inputs["req_pool_indices"], TypedBuilder(module), []
    dtype, shape = choice(source, ANY), random_shape(source)
    names = [f"field{number}" for number in range(integer(source, 1, 4))]
    with b.phase("prepare"):
        for name in names:
            carry(module, name, dtype, *shape)
            values.append(b("carry.load", rows, names=(name,), field=name))
    with b.phase("commit"):
        for name in names:
            b.many("carry.store", rows, values[integer(source, 0, len(values) - 1)], field=name)
    b.hand_out(*(value for value in values if not module.users(value) or integer(source, 0, 1)))
    check_module(launcher, module, source, {"req_pool_indices": random_batch(source)})
