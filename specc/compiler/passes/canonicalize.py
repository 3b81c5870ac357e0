"""canonicalize: remove what earlier passes left dead, to a fixpoint, and axes that no value has."""

from __future__ import annotations

from dataclasses import dataclass

from specc.compiler.ir.analysis.liveness import sweep
from specc.compiler.ir.core import Module
from specc.compiler.ir.types import SHARDS, TensorType
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.passes.prune_dead_dataflow import removal

SIZES = frozenset({"K", "S", "D", "N", "A", "P"})
"""Dimensions that say how large a program is, whether a value has such an axis or not: they stay, for the plan."""


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Sweep dead code and unused dimensions."""

    name = "canonicalize"
    requires = frozenset({"typed"})
    establishes = frozenset({"live"})

    def run(self, module: Module, ctx: Context) -> None:
        """Sweep what is dead, then drop the dimensions that nothing mentions but the program's sizes."""
        for removed in sweep(module):
            message = f"nothing reads {removed.what} any more: {removed.verdict}"
            self.remark(ctx, message, removed.location, removal(module, removed))
        types = [value.type for value in module.values()] + [carry.type for carry in module.carries.values()]
        used = {entry for type_ in types if isinstance(type_, TensorType) for entry in type_.shape} | SIZES
        used |= {carry.limit for carry in module.carries.values() if carry.limit is not None}
        used |= {whole for whole, shard in SHARDS.items() if shard in used}  # it says which columns are of no token
        for name in [name for name in module.dims if name not in used]:
            del module.dims[name]
        _tidy_names(module)


def _tidy_names(module: Module) -> None:
    """Give a value back the name it had before a twin that is gone now took it: ``tokens_1`` -> ``tokens``."""
    taken = {value.name for value in module.values()}
    for value in module.values():
        base, _, number = value.name.rpartition("_")
        if base and number.isdigit() and base not in taken:
            taken = taken - {value.name} | {base}
            module.rename(value, base)
