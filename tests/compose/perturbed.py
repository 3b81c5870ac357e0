"""Programs of the examples that hand out one internal value more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from programs import EXAMPLES

from specc.algorithms import names, needs
from specc.config import LoadedConfig, load_config
from specc.driver import start_module
from specc.ir.core import Module, Value, entry_of, is_state, on_nodes
from specc.ir.ops import OPS
from specc.passes.base import Context
from specc.passes.manager import run_passes
from specc.passes.pipeline import FRONT
from specc.passes.select_compaction import SelectCompaction

PROBE = "probe"
"""The name of the output."""
NOT_HERE = ("random-qwen3-chain",)
"""Examples whose models are made by a script; another example has the same program."""


@cache
def examples() -> dict[str, LoadedConfig]:
    """Every example at its deepest, by the name of its file."""
    found = {path.stem: path for path in sorted(EXAMPLES.glob("*.yaml")) if path.stem not in NOT_HERE}
    return {name: load_config(path, names(), needs).depths()[0] for name, path in found.items()}


class Probe(NamedTuple):
    """An internal value: its name, before compaction if it has a row per node, when all passes of the front have run
    if not."""

    name: str
    nodes: bool


def internal(module: Module) -> Iterator[Value]:
    """Every tensor that an op or a forward makes and that is there to the end of its entry.

    What an op in place replaces is not: no legal module reads it afterwards.
    """
    replaced = {op.operands[0] for op in module.ops() if OPS[op.opcode].inplace}
    for op in module.ops():
        yield from (value for value in op.results if not is_state(value) and value not in replaced)


def probes(loaded: LoadedConfig) -> list[Probe]:
    """All internal values of a program."""
    found: list[Probe] = []
    front(loaded, lambda module, nodes: found.extend(Probe(v.name, nodes) for v in internal(module) if on_nodes(v) == nodes))
    return found


def front(loaded: LoadedConfig, look: Callable[[Module, bool], object] = lambda module, nodes: None) -> Module:
    """The module before any kernel is formed; ``look`` sees it before compaction (True) and at the end (False)."""
    module, ctx = start_module(loaded), Context(loaded)
    for step in FRONT:
        if step is SelectCompaction:
            look(module, True)
        run_passes(module, [step()], ctx)
    look(module, False)
    return module


def handing_out(loaded: LoadedConfig, probe: Probe) -> Module:
    """The module before any kernel is formed, with an output more.

    As any output of every node, it is then what lies along the accepted path.
    """

    def hand_out(module: Module, nodes: bool) -> None:
        if nodes == probe.nodes:
            (value,) = [value for value in internal(module) if value.name == probe.name]
            assert value.source is not None
            prefix = "prefill." if entry_of(value.source.phase) == "prefill" else ""
            module.outputs[prefix + PROBE] = value

    return front(loaded, hand_out)
