"""From a module that no family has seen yet to kernels and plan; and those kernels, interpreted."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triton_interpreter import lighten, quietly

from specc.compiler.codegen.kernels import generate_kernels
from specc.compiler.codegen.render import lib_sources
from specc.compiler.config import LoadedConfig
from specc.compiler.driver.build import Build, ShapeBuild
from specc.compiler.driver.plan import build_plan
from specc.compiler.ir.core import Module
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.invariants import check_now
from specc.compiler.passes.pipeline import PLANNING
from specc.lab.measure.interpreted import InterpretedBackend


def compile_planned(module: Module, loaded: LoadedConfig) -> Build:
    """Planning passes, kernels and plan of a module as the front leaves it.

    Raises:
        DiagnosticError: it cannot be built.

    """
    ctx = Context(loaded)
    run_passes(module, [step.of(loaded) for step in PLANNING], ctx)
    check_now(module)
    (generated,) = generate_kernels({loaded.config.shape: module}, loaded.file)
    depth = ShapeBuild(loaded, module, ctx, generated, build_plan(module, generated, loaded.config))
    return Build(loaded, (depth,), lib_sources(source.text for source in generated.sources))


@contextmanager
def interpreted(build: Build) -> Iterator[InterpretedBackend]:
    """The kernels of a build in Triton's interpreter; nothing of them is left afterwards."""
    lighten()
    path, known = list(sys.path), set(sys.modules)
    with tempfile.TemporaryDirectory() as folder, quietly():
        try:
            yield InterpretedBackend(build, Path(folder))
        finally:
            sys.path[:] = path
            for name in [name for name in sys.modules.keys() - known if name.startswith("interpreted_kernels_")]:
                del sys.modules[name]
            sys.path_importer_cache.pop(folder, None)
