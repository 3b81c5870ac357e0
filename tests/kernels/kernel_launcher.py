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
from triton_interpreter import lighten, quietly

from specc.compiler.codegen.aot import COMMON_OPTIONS
from specc.compiler.codegen.render import lib_sources, render_kernel
from specc.compiler.kernels.writing.family import Spec

PACKAGE = "specc_test_kernels"
INTERPRETED = not isinstance(tl.max, triton.JITFunction)
if INTERPRETED:
    lighten()


def options(spec: Spec) -> dict[str, Any]:
    """What wheels are compiled with too. A fused product would make the lanes of a sum differ in its last bit."""
    if INTERPRETED:
        return {}
    fusion = COMMON_OPTIONS["enable_fp_fusion"]
    return {"enable_fp_fusion": fusion, "num_warps": spec.num_warps, "num_stages": spec.num_stages}


@dataclass
class Launcher:
    """Renders, imports and launches kernels on one device; arguments come by name and go by position."""

    device: str
    folder: Path
    kernels: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def kernel(self, spec: Spec) -> Any:
        """The kernel of a spec, imported from a file as a wheel would."""
        text = render_kernel(spec, [])
        name = f"{spec.family}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if name not in self.kernels:
            for path, code in lib_sources([text]).items():
                if not (self.folder / path).exists():  # a plugin's: the library is there
                    (self.folder / path).write_text(code)
                assert (self.folder / path).read_text() == code
            (self.folder / f"{name}.py").write_text(text)
            importlib.invalidate_caches()
            self.kernels[name] = getattr(importlib.import_module(f"{PACKAGE}.{name}"), spec.family)
        return self.kernels[name]

    def launch(self, spec: Spec, grid: tuple[int, int], arguments: Mapping[str, Any]) -> None:
        """Launch with the constants of the spec; `arguments` names exactly those of the spec."""
        names = [argument.name for argument in spec.arguments]
        assert sorted(names) == sorted(arguments)
        kernel = self.kernel(spec)
        with quietly():
            kernel[grid](*(arguments[name] for name in names), **dict(spec.constants), **options(spec))
