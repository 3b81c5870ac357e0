"""Covers that no family of today offers: kernels that wait for each other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from programs import run_on

from specc.ir.core import Module
from specc.kernels.shared.base import Cluster, Family, Spec
from specc.passes import form_kernels
from specc.passes.form_kernels import FormKernels
from specc.support.diagnostics import DiagnosticError

CROSSED = """
module @program {
  established compacted, kv-bound, live, tree-form, typed, verify-selected
  dim B : request <= 4
  dim K : branch = 1
  input %first : i64[B, K]
  input %second : i64[B, K]
  phase prepare {
    %a1 = kv.advance(%first) : i64[B, K]
    %b1 = kv.advance(%second) : i64[B, K]
    %a2 = kv.advance(%b1) : i64[B, K]
    %b2 = kv.advance(%a1) : i64[B, K]
  }
  output a = %a2
  output b = %b2
}
"""


class ByLetter(Family):
    """Covers the ops whose results have one letter, each of them before one of the other letter."""

    stem = "by_letter"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """One for each letter."""
        return [tuple(op for op in module.ops() if op.result.name.startswith(letter)) for letter in "ab"]

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """Never asked for."""
        raise NotImplementedError

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """Never asked for."""
        raise NotImplementedError


def test_kernels_that_wait_for_each_other_are_no_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_kernels, "FAMILIES", {"by_letter": ByLetter()})
    with pytest.raises(DiagnosticError, match="wait for each other in a circle") as found:
        run_on(CROSSED, FormKernels())
    assert [one.code for one in found.value.diagnostics] == ["kernel/no-cover"]
