"""Render, import and launch kernels: in triton's interpreter on the CPU, or on a GPU with SPECC_TEST_GPU=1.

Triton decides between interpreting and compiling when it is imported, for the whole process. So one run does
one of the two: by default the interpreter; with SPECC_TEST_GPU=1 the cases marked `gpu`, the same cases.
"""

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ON_GPU = os.environ.get("SPECC_TEST_GPU") == "1"
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl
from kernel_families import FAMILIES
from triton_interpreter import lighten, quietly

from specc.codegen import render
from specc.codegen.aot import COMMON_OPTIONS

PACKAGE = "specc_test_kernels"
INTERPRETED = not isinstance(tl.max, triton.JITFunction)
if INTERPRETED:
    lighten()


OPTIONS: Mapping[str, Any] = {} if INTERPRETED else {"enable_fp_fusion": COMMON_OPTIONS["enable_fp_fusion"]}
"""What wheels are compiled with too. A fused product would make the lanes of a sum differ in its last bit."""


@dataclass
class Launcher:
    """Renders, imports and launches kernels on one device; arguments come by name and go by position."""

    device: str
    folder: Path
    kernels: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def kernel(self, stem: str, flags: Mapping[str, Any]) -> Any:
        """The kernel `stem` under `flags`, imported from a file as a wheel would."""
        name = f"{stem}_{hashlib.sha256(repr(sorted(flags.items())).encode()).hexdigest()[:16]}"
        if name not in self.kernels:
            (self.folder / f"{name}.py").write_text(render.render_kernel(stem, flags, [name]))
            importlib.invalidate_caches()
            self.kernels[name] = getattr(importlib.import_module(f"{PACKAGE}.{name}"), stem)
        return self.kernels[name]

    def launch(
        self,
        stem: str,
        flags: Mapping[str, Any],
        grid: tuple[int, int],
        arguments: Mapping[str, Any],
        constants: Mapping[str, int],
    ) -> None:
        """Launch; `arguments` and `constants` must name exactly what docs/kernels.md lists under `flags`."""
        family = FAMILIES[stem]
        names = family.names(flags)
        assert sorted(names) == sorted(arguments)
        assert sorted(family.constant_names(flags)) == sorted(constants)
        kernel = self.kernel(stem, flags)
        with quietly():
            kernel[grid](*(arguments[name] for name in names), **constants, **OPTIONS)
