"""Instruments that know no pass: print-ir, print-ir-diff, time-passes and the crash reproducer."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from specc.compiler.ir.core import Module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.pass_manager.manager import BaseInstrument
from specc.compiler.pass_manager.pass_base import Pass
from specc.compiler.support.diagnostics import DiagnosticError
from specc.compiler.support.files.writing import write_output


@dataclass
class PrintIr(BaseInstrument):
    """Print the module after each pass, whole or as a unified diff to what it was before."""

    write: Callable[[str], None]
    diff: bool = False
    _before: str = ""

    def before(self, module: Module, step: Pass) -> None:
        """Remember the text."""
        self._before = print_module(module) if self.diff else ""

    def after(self, module: Module, step: Pass) -> None:
        """Print."""
        text = print_module(module)
        if not self.diff:
            self.write(f"// ---- after {step.name} ----\n{text}")
            return
        lines = list(difflib.unified_diff(self._before.splitlines(), text.splitlines(), n=1, lineterm=""))[2:]
        self.write(f"// ---- {step.name} ----\n" + "\n".join(lines or ["// no change"]) + "\n")


@dataclass
class TimePasses(BaseInstrument):
    """Wall time of every pass, in seconds, instruments included."""

    seconds: dict[str, float] = field(default_factory=dict)
    _start: float = 0.0

    def before(self, module: Module, step: Pass) -> None:
        """Start the clock."""
        self._start = time.perf_counter()

    def after(self, module: Module, step: Pass) -> None:
        """Stop it."""
        self.seconds[step.name] = self.seconds.get(step.name, 0.0) + time.perf_counter() - self._start


@dataclass
class Reproducer(BaseInstrument):
    """When a pass crashes, write the module it was given; the first line of the file is the command that repeats it."""

    directory: Path
    _before: str = ""

    def before(self, module: Module, step: Pass) -> None:
        """Remember the text."""
        self._before = print_module(module)

    def failed(self, module: Module, step: Pass, error: Exception) -> None:
        """Write the file, unless the failure is the input being wrong, or only the configuration repeats it."""
        if isinstance(error, DiagnosticError) or not step.repeats:
            return
        path = self.directory / f"{module.name}.{step.name}.repro.specir"
        command = f"// RUN: specc-opt -p {spell(step)} {path.name}\n"
        summary = (str(error).splitlines() or [""])[0]
        try:
            write_output(path, f"{command}// {type(error).__name__}: {summary}\n{self._before}")
        except DiagnosticError as unwritten:
            error.add_note(f"no reproducer: {unwritten}")
        else:
            error.add_note(f"reproducer: {path}")


def spell(step: Pass) -> str:
    """A pass and its options as ``-p`` takes them: ``name{option=value,...}``."""
    options = {option.name: getattr(step, option.name) for option in fields(step)}
    inner = ",".join(f"{name.replace('_', '-')}={value}" for name, value in options.items())
    return f"{step.name}{{{inner}}}" if inner else step.name
