"""From a module that no family has seen yet to kernels and plan; and those kernels, interpreted."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ours import TritonBackend
from triton_interpreter import lighten, quietly

from specc.build import Build, DepthBuild
from specc.codegen.kernels import generate_kernels
from specc.codegen.plan import build_plan
from specc.codegen.render import lib_sources
from specc.config import LoadedConfig
from specc.ir.core import Module
from specc.passes.base import Context
from specc.passes.instruments import check_now
from specc.passes.manager import run_passes
from specc.passes.pipeline import PLANNING
from specc.support.diagnostics import DiagnosticError

NOT_COVERED = "not covered"
"""The outcome of a legal module whose ops no set of kernel families covers."""
MAY_BE_UNCOVERED = True
"""Whether that is an outcome, and not a failure."""


class Uncovered(AssertionError):
    """A legal module for which there are no kernels."""


def compile_planned(module: Module, loaded: LoadedConfig) -> Build:
    """Planning passes, kernels and plan of a module as the front leaves it.

    Raises:
        Uncovered: no set of kernel families covers its ops.
        DiagnosticError: it cannot be built for another reason.

    """
    ctx = Context(loaded)
    try:
        run_passes(module, [step() for step in PLANNING], ctx)
    except DiagnosticError as error:
        if any(diagnostic.code == "kernel/no-cover" for diagnostic in error.diagnostics):
            raise Uncovered("; ".join(diagnostic.message for diagnostic in error.diagnostics)) from None
        raise
    check_now(module)
    (generated,) = generate_kernels({loaded.config.num_steps: module}, loaded.file)
    plan = build_plan(module, generated, loaded.config)
    return Build(loaded, (DepthBuild(loaded, module, ctx, generated, plan),),
                 lib_sources(source.text for source in generated.sources))  # fmt: skip


@contextmanager
def interpreted(build: Build) -> Iterator[TritonBackend]:
    """The kernels of a build in Triton's interpreter; nothing of them is left afterwards."""
    lighten()
    path, known = list(sys.path), set(sys.modules)
    with tempfile.TemporaryDirectory() as folder, quietly():
        try:
            yield TritonBackend(build, Path(folder))
        finally:
            sys.path[:] = path
            for name in [name for name in sys.modules.keys() - known if name.startswith("bench_kernels_")]:
                del sys.modules[name]
            sys.path_importer_cache.pop(folder, None)
