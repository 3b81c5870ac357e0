"""Covers that no family of today offers: kernels that wait for each other, and ops that none takes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from programs import run_on

from specc.ir.core import Module
from specc.ir.plan import Kernel, Reference
from specc.kernels.base import Cluster, Family, Spec
from specc.passes import form_kernels, invariants
from specc.passes.form_kernels import FormKernels

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
        """See the class."""
        return [tuple(op for op in module.ops() if op.result.name.startswith(letter)) for letter in "ab"]

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """Never asked for."""
        raise NotImplementedError

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """Never asked for."""
        raise NotImplementedError


def test_of_kernels_that_wait_for_each_other_one_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (form_kernels, invariants):
        monkeypatch.setattr(module, "FAMILIES", {"by_letter": ByLetter()})
    found, ctx = run_on(CROSSED, FormKernels())
    (kernel,), references = found.decls_of(Kernel), found.decls_of(Reference)
    assert (kernel.family, len(references)) == ("by_letter", 2)
    remarks = [remark.message for remark in ctx.remarks if "runs as its reference" in remark.message]
    assert len(remarks) == 2 and all("what by_letter would launch it with" in remark for remark in remarks)


class Neighbours(ByLetter):
    """Covers the third op with the first, or with the second."""

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """See the class."""
        ops = list(module.ops())
        return [(ops[0], ops[2]), (ops[1], ops[2])]


def test_no_op_is_in_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (form_kernels, invariants):
        monkeypatch.setattr(module, "FAMILIES", {"by_letter": Neighbours()})
    found, _ = run_on(CROSSED, FormKernels())
    assert (len(found.decls_of(Kernel)), len(found.decls_of(Reference))) == (1, 2)


def test_a_program_without_any_family_runs_by_references_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (form_kernels, invariants):
        monkeypatch.setattr(module, "FAMILIES", {})
    found, _ = run_on(CROSSED, FormKernels())
    assert [op.attrs["kernel"] for op in found.ops()] == [f"torch_kv_advance_{i}" for i in range(4)]
