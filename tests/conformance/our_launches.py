"""All kernels of a module, one after the other, on one memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from cluster_cases import Memory, Scan, form, launch_of
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.core import Module


def launch_all(launcher: Launcher, module: Module, given: Mapping[str, Tensor], scan: Scan) -> dict[str, Tensor]:
    """Form the kernels of a module and launch each once, in order.

    Args:
        launcher: where to launch.
        module: a typed module without kernels, or with its own.
        given: values and pools (``relay.<field>``) by name; ``req_pool_indices`` is one of them.
        scan: how reductions are cut.

    Returns:
        memory afterwards by name, values at the largest batch; what nobody wrote is poison.

    """
    tensors: dict[str, Tensor] = {}
    source = torch.Generator().manual_seed(0)
    module.decls.clear()
    for stem, cluster in form(module):
        memory = Memory(module, cluster, given["req_pool_indices"], source, given, scan.slack, tensors)
        launch = launch_of(module, stem, cluster, len(memory.rows), scan)
        launch.run(launcher, memory)
        for scratch in launch.spec.scratch:
            del tensors[scratch.name]
        places = {value.name: memory.root(value).name for op in cluster for value in op.results}
        tensors |= {name: tensors[place] for name, place in places.items() if place in tensors}
    return tensors


def padded(value: Tensor, padding: int, content: float) -> Tensor:
    """A value with rows of padding behind the batch."""
    return torch.cat((value, value.new_full((padding, *value.shape[1:]), content)))
