"""The `spec` dialect: a configuration that is not a program yet."""

from __future__ import annotations

from specc.compiler.ir.opdef import OpDef

OPS = (OpDef("spec.step", "->", "The whole program of one algorithm.", {"algorithm": str}, until="expanded"),)
