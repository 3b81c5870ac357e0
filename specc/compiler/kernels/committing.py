"""Families that commit states of recurrent layers share ops, programs and arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.types import StateType
from specc.compiler.kernels import copying
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Parameter
from specc.compiler.kernels.writing.knobs import WARPS, Knobs, tuned_split
from specc.runtime.plan.recurrent.state_tables import STATE_POINTERS, TABLE_SIZES


class StateCommit(Family):
    """A launch for all layers, whose programs share the tiles of a request's state in each."""

    opcode: ClassVar[str]
    """The op that it lowers."""

    @abstractmethod
    def tiles(self, op: Op) -> int:
        """Tiles of a request's state in one layer."""

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Each commit is a launch of its own."""
        yield from ((op,) for op in module.find(self.opcode))

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """So many programs for each request and layer that two waves over the device share all of them."""
        op = cluster[0]
        split = tuned_split(module, op, batch) or copying.programs(self.tiles(op), batch * layers(op))
        return batch, layers(op) * split, 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`: a layer's tiles are shared by any number of programs; sums are along paths alone."""
        return Knobs(warps=WARPS, split=self.tiles(cluster[0]), rows=layers(cluster[0]))

    def constants(self, module: Module, op: Op) -> tuple[tuple[str, int], ...]:
        """Those of every commit: nodes, slots of a path, layers, and the table that says where states are."""
        (along,) = (type_.along for value in op.operands if isinstance(type_ := value.type, StateType))
        sizes = zip(("PARTS", "WORDS"), TABLE_SIZES[self.opcode], strict=True)
        return ("N", module.size(along)), ("A", module.size("A")), ("LAYERS", layers(op)), *sizes


def layers(op: Op) -> int:
    """Layers whose states it commits."""
    return max(1, int(op.attrs["layers"]))


def commit_arguments(op: Op) -> tuple[Parameter, ...]:
    """The path of each request, where its state is and where a copy goes, and the table of states."""
    arguments = KernelArguments()
    arguments.value("accept_index_ptr", op["accept_index"])
    arguments.value("accept_lens_ptr", op["accept_lens"])
    arguments.value("rows_ptr", op["rows"])
    arguments.input("state_rows_ptr", op["state_rows"])
    arguments.value("seq_lens_ptr", op["seq_lens"])
    arguments.input("kept_rows_ptr", op["kept_rows"])
    arguments.input("kept_interval_ptr", op["kept_interval"])
    arguments.buffer("places_ptr", "i64", STATE_POINTERS)
    return tuple(arguments.parameters)
