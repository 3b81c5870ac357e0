"""Modules with their kernels: programs, and a few ops that somebody composed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from programs import compile_to, load

from specc.compiler.algorithms import names, needs
from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Kernel
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import Spec, cluster_of
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.form_kernels import FormKernels

TREE: dict[str, Any] = {"topk": 4, "num_steps": 4, "num_draft_tokens": 9}
FORMS = [(name, form) for name in names() for form in ({"num_steps": 4}, TREE) if form is not TREE or needs(name).trees]
HEAD = """module @small {
  established compacted, kv-bound, live, tree-form, typed, verify-selected
  dim B : request <= 4
  dim K : branch = 2
  dim N : node = 3
  dim A : path = 3
  dim V : vocab = 64
  carry @state : i64[B]
  input %rows : i64[B]
  input %lens : i64[B]
  input %health : i32[B]
  input %x : f32[B, V]
  input %y : bf16[B, N, V]
  input %at : i64[B, K]
  input %tokens : i64[B, K]
  input %scores : f32[B, K]
  input %hidden : f32[B, K, 300]
"""
ARGMAX = '%a{0}, %bad{0} = vocab.argmax({1}, %rows) {{dtype = "i32", keep = ""}} : i32[B], i1[B]'


def small(*phases: tuple[str, list[str]], outputs: Mapping[str, str] | None = None) -> Module:
    """A module of a few ops, with its kernels."""
    lines = [line for phase, ops in phases for line in (f"  phase {phase} {{", *(f"    {op}" for op in ops), "  }")]
    lines += [f"  output {name} = %{value}" for name, value in (outputs or {}).items()]
    return of_text(HEAD + "\n".join(lines) + "\n}\n")


def of_text(text: str) -> Module:
    """A module with its kernels."""
    module = parse_module(text, "small.specir")
    FormKernels().run(module, Context())
    return module


def formed(algorithm: str, change: Callable[[Module], None] | None = None, **keys: Any) -> Module:
    """A program with its kernels, changed before they are formed."""
    module = compile_to("canonicalize", load(algorithm, **keys))
    if change is not None:
        change(module)
    FormKernels().run(module, Context())
    return module


def launches(module: Module) -> dict[str, list[str]]:
    """The opcodes of every launch, by its name."""
    return {kernel.name: [op.opcode for op in cluster_of(module, kernel.name)] for kernel in module.decls_of(Kernel)}


def spec_of(module: Module, kernel: str) -> Spec:
    """The kernel of a launch."""
    (family,) = [decl.family for decl in module.decls_of(Kernel) if decl.name == kernel]
    return FAMILIES[family].spec(module, kernel, cluster_of(module, kernel))


def grid_of(module: Module, kernel: str, batch: int) -> int:
    """Programs of a request."""
    (family,) = [decl.family for decl in module.decls_of(Kernel) if decl.name == kernel]
    rows, programs, last = FAMILIES[family].grid(module, cluster_of(module, kernel), batch)
    assert (rows, last) == (batch, 1)
    return programs
