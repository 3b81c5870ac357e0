"""The kernels of a program that was just built in Triton's interpreter, for machines without a GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from specc.compiler.driver.build import Build
from specc.compiler.driver.files import kernel_files
from specc.runtime.backends.cuda import argument_value
from specc.runtime.entry.frame import Frame
from specc.runtime.plan.nodes import Launch


class InterpretedBackend:
    """The rendered kernels, interpreted; set TRITON_INTERPRET=1 before anything imports Triton."""

    def __init__(self, build: Build, folder: Path) -> None:
        """Write the kernels to a folder, and import them from there."""
        package = f"interpreted_kernels_{len(sys.path)}"
        for name, text in kernel_files(build).items():
            path = folder / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        self._kernels = {
            source.name: getattr(importlib.import_module(f"{package}.kernels.{source.name}"), source.function)
            for source in build.sources
        }

    def launch(self, node: Launch, frame: Frame) -> None:
        """Launch one node with the plan's arguments, grid and constants."""
        _, y, z = node.grid[frame.plan.bucket(frame.rows)]
        values = [argument_value(argument, frame) for argument in node.args]
        self._kernels[node.kernel][frame.rows, y, z](*values, **frame.plan.kernels[node.kernel].constants)
