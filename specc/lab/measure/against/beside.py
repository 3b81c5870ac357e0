"""A measurement with what SGLang's own kernels take for the same work, where they are installed and do the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.lab.measure.against.compare import ResultsDifferError, captured, compare, most_runs
from specc.lab.measure.against.counterpart import obstacle, shape_of
from specc.lab.measure.against.parts import parts
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import Work
from specc.lab.measure.against.work_tree import TooCloseError, TreeWork
from specc.lab.measure.results.records import Compared, Measurement
from specc.lab.measure.session import on
from specc.lab.measure.timing import Effort
from specc.runtime.backends import Backend
from specc.runtime.plan.plan import Plan

if TYPE_CHECKING:  # it needs SGLang
    from specc.lab.measure.against.sequence import Sequence

VERSION = "0.5.23"
"""Of SGLang; another one has other functions."""
CHAIN_EFFORT, TREE_EFFORT = Effort(copies=10, samples=40), Effort(copies=5, samples=16)


def missing() -> str | None:
    """Why SGLang's kernels cannot be imported; None if they can."""
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        return f"SGLang {VERSION} is not installed here"
    if installed != VERSION:
        return f"SGLang {installed} is installed here, and only {VERSION} is compared with"
    try:
        for name in ("chain", "tree"):
            importlib.import_module(f"specc.lab.measure.against.sglang_{name}")
    except Exception as error:  # whatever an engine raises that does not fit the machine
        return f"SGLang {VERSION} cannot be imported here: {error}"
    return None


def effort_of(plan: Plan) -> Effort:
    """How often a program's parts are timed."""
    return TREE_EFFORT if plan.size("K") > 1 else CHAIN_EFFORT


def beside(
    measurement: Measurement, plan: Plan, backend: Backend, device: torch.device, on_done: Callable[[str], None]
) -> Measurement:
    """The measurement with times of both sides in its buckets, or with a remark why there are none.

    Raises:
        DiagnosticError: ``measure/results-differ``.

    """
    why = obstacle(plan)
    remark = f"SGLang {VERSION} has no counterpart that is compared: {why}" if why else missing()
    if remark:
        return replace(measurement, remark=remark)
    name, compared = "", list[Compared]()
    for bucket in measurement.buckets:
        effort = effort_of(plan)
        with on(device):
            try:
                program, sglang = agreeing(plan, backend, device, bucket.bucket, effort)
            except TooCloseError as error:
                return replace(measurement, remark=str(error))
            name = sglang.name
            for part in parts(program, sglang):
                ratio, _ = captured(part, program, sglang, effort)
                compared.append(Compared(bucket.bucket, part.work, ratio))
        on_done(f"both sides at {bucket.bucket}")
    return replace(measurement, against=name, compared=tuple(compared))


def agreeing(
    plan: Plan, backend: Backend, device: torch.device, bucket: int, effort: Effort
) -> tuple[ProgramLaunches, Sequence]:
    """Both sides on the same tensors, after they were found to do the same; SGLang can be imported.

    Raises:
        DiagnosticError: ``measure/results-differ``.
        TooCloseError: the tree is too wide for inputs with which rounding decides nothing.

    """
    shape, runs = shape_of(plan, bucket), most_runs(effort)
    if shape.topk > 1:
        from specc.lab.measure.against.sglang_tree import SglangTree

        work: Work = TreeWork(shape, device, runs=runs)
        program, sglang = ProgramLaunches(work, plan, backend), SglangTree(work)
    else:
        from specc.lab.measure.against.sglang_chain import SglangChain

        work = Work(shape, device, runs=runs)
        program, sglang = ProgramLaunches(work, plan, backend), SglangChain(work)
    try:
        compare(program, sglang)
    except ResultsDifferError as error:
        message = f"bucket {bucket}: {error}, so nothing is compared with {sglang.name}"
        raise DiagnosticError(Diagnostic("measure/results-differ", message)) from error
    return program, sglang
