"""Algorithms of plugins: found by entry point, and blamed, by name, file and line, for what goes wrong in them."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NoReturn

from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.algorithms.plugins.references import reference_source
from specc.compiler.algorithms.plugins.tiles import check_tile
from specc.compiler.config import Fit, Needs, Pair
from specc.compiler.config.block import Block
from specc.compiler.ir.checker import check_linear, check_module
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import add_forward, add_op
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError, Note
from specc.compiler.support.location import Location

HINT = "this is a mistake of the plugin, not of the configuration; SPECC_DEBUG=1 shows the traceback"

_OUTPUTS = ("prefill.bonus", "prefill.health", "predict", "accept_lens", "new_seq_lens", "bonus", "health")
"""What every program hands to its engine."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of the group ``specc.algorithms``."""

    point: EntryPoint

    def __str__(self) -> str:
        """Return its algorithm's name, its distribution if that is known, and its value: ``module:object``."""
        dist = getattr(self.point, "dist", None)
        return f"{self.point.name.upper()}, of {f'{dist.name} {dist.version}, ' if dist else ''}{self.point.value}"

    @property
    def distribution(self) -> str:
        """The distribution that brings it, with its version; the entry point's value where that is not known."""
        dist = getattr(self.point, "dist", None)
        return f"{dist.name} {dist.version}" if dist else self.point.value

    def load(self) -> Algorithm:
        """Import the algorithm and let modules call its forwards and compute its ops.

        Raises:
            DiagnosticError: ``plugin/unusable``.

        """
        try:
            algorithm = self.point.load()
        except (Exception, SystemExit) as error:
            self._blame("plugin/unusable", "cannot be imported", error)
        if problem := _no_algorithm(algorithm):
            raise DiagnosticError(Diagnostic("plugin/unusable", f"the plugin {self}: {problem}", hint=HINT))
        for forward in algorithm.forwards:
            try:
                add_forward(forward)
            except TypeError as error:
                self._blame("plugin/unusable", "has a forward that cannot be called", error)
        for op in algorithm.ops:
            try:
                add_op(op)
                reference_source(op)
                check_tile(op)
            except (TypeError, SyntaxError, ValueError, OSError) as error:
                self._blame("plugin/unusable", "has an op that cannot be computed", error)
        return algorithm

    def needs(self, algorithm: Algorithm) -> Needs:
        """What its algorithm asks of a configuration, with functions that are blamed."""
        needs = algorithm.needs
        if needs.most_nodes is not Needs().most_nodes:
            needs = replace(needs, most_nodes=self._number("most_nodes", needs.most_nodes))
        if needs.modules is not None:
            needs = replace(needs, modules=self._number("modules", needs.modules))
        if needs.recognises is not Needs().recognises:
            needs = replace(needs, recognises=self._fit(needs.recognises))
        return needs

    def build(self, chosen: Algorithm, scope: Scope) -> None:
        """Let its algorithm write the graph, and check it while it is known whose it is.

        Raises:
            DiagnosticError: ``plugin/failed``, or what the algorithm itself finds wrong.

        """
        at = scope.at("algorithm")
        try:
            with self.blamed(chosen.build):
                chosen.build(scope)
        except DiagnosticError as error:
            diagnostics = [replace(diagnostic, location=diagnostic.location or at) for diagnostic in error.diagnostics]
            raise DiagnosticError(diagnostics, error.sources, error.paths) from error
        problems = [
            (problem.message, problem.notes) for problem in check_module(scope.module) or check_linear(scope.module)
        ]
        if missing := [name for name in _OUTPUTS if name not in scope.module.outputs]:
            message = f"it hands out no {', '.join(missing)}; finish_prefill() and verify() hand out all but health"
            problems.append((message, ()))
        problems += [(f"{op.opcode} comes from no place", ()) for op in scope.module.ops() if op.location is None]
        if problems:
            wrong = f"the plugin {self}, wrote a wrong graph"
            raise DiagnosticError(Diagnostic("plugin/failed", f"{wrong}: {what}", at, HINT, n) for what, n in problems)

    def takes(self, place: str, differences: Iterable[str], at: Location | None) -> None:
        """Find its graph at fault where it differs from that of the algorithm whose place it takes in an engine.

        Raises:
            DiagnosticError: ``plugin/failed``.

        """
        if found := "; ".join(differences):
            message = f"the plugin {self}, cannot run as {place}: {found}"
            raise DiagnosticError(Diagnostic("plugin/failed", message, at, HINT))

    def _number(self, name: str, function: Callable[..., object]) -> Callable[..., int]:
        """The function of `Needs`, which gives a number or a finding."""

        def asked(*sizes: int) -> int:
            with self.blamed(function):
                answer = function(*sizes)
                if type(answer) is not int or answer < 1:
                    raise TypeError(f"{name} gives {answer!r} for {', '.join(map(str, sizes))}, not a number from 1 on")
            return answer

        return asked

    def _fit(self, function: Callable[[Pair], object]) -> Callable[[Pair], Fit | None]:
        """The function of `Needs` that recognises drafts, or a finding."""

        def asked(pair: Pair) -> Fit | None:
            with self.blamed(function):
                answer = function(pair)
                if answer is not None and not isinstance(answer, Fit):
                    raise TypeError(f"recognises gives {answer!r:.80}, neither a specc.compiler.config.Fit nor None")
            return answer

        return asked

    @contextmanager
    def blamed(self, *functions: Callable[..., object]) -> Iterator[None]:
        """Blame the plugin for what is raised inside; ``functions`` are those of its own that are called there."""
        try:
            yield
        except DiagnosticError:
            raise
        except Exception as error:
            self._blame("plugin/failed", "failed", error, *functions)

    @contextmanager
    def suspected(self) -> Iterator[None]:
        """Blame the plugin for what is raised in its own code inside; name it in a note where something else fails."""
        note = Note(f"the graph was written by the plugin {self}")
        try:
            yield
        except DiagnosticError as error:
            plugins = [
                replace(diagnostic, notes=(*diagnostic.notes, note))
                if diagnostic.code.startswith(("type/", "ir/", "kernel/"))
                else diagnostic
                for diagnostic in error.diagnostics
            ]
            raise DiagnosticError(plugins, error.sources, error.paths) from error
        except Exception as error:
            if self.place(error) is not None:
                self._blame("plugin/failed", "failed", error)
            error.add_note(note.message)
            raise

    def _blame(self, code: str, what: str, error: BaseException, *functions: Callable[..., object]) -> NoReturn:
        """Raise the finding, with the innermost line of the plugin that led to the error."""
        summary = (str(error).strip().splitlines() or [""])[0][:300]
        message = f"the plugin {self}, {what}: {type(error).__name__}: {summary}".rstrip(": ")
        place = self.place(error, *functions)
        if place is None:
            raise DiagnosticError(Diagnostic(code, message, hint=HINT)) from error
        path, line = place
        text = "".join(linecache.getlines(path))
        indent = len(written := linecache.getline(path, line)) - len(written.lstrip())
        at = Note("it was here", Location(Path(path).name, line, indent + 1))
        known = {at.location.file: text} if text and at.location else {}
        diagnostic = Diagnostic(code, message, hint=HINT, notes=(at,))
        raise DiagnosticError(diagnostic, known, {Path(path).name: path}) from error

    def place(self, error: BaseException, *functions: Callable[..., object]) -> tuple[str, int] | None:
        """File and line of the innermost frame of the plugin's package, or of the package of one of its functions."""
        modules = [
            self.point.value.partition(":")[0],
            *(getattr(function, "__module__", None) or "" for function in functions),
        ]
        packages = {module.strip().partition(".")[0] for module in modules} - {"specc", ""}
        innermost = None
        for frame, line in traceback.walk_tb(error.__traceback__):
            if str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
                innermost = frame.f_code.co_filename, line
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            innermost = error.filename, error.lineno
        return innermost


def _no_algorithm(loaded: object) -> str | None:
    """What keeps an object from being an algorithm; None if nothing does."""
    if not isinstance(loaded, Algorithm):
        return f"it is no specc.compiler.algorithms.Algorithm but of type {type(loaded).__name__}"
    if not callable(loaded.build):
        return f"its build is no function but of type {type(loaded.build).__name__}"
    if not isinstance(loaded.needs, Needs):
        return f"its needs are no specc.compiler.config.Needs but of type {type(loaded.needs).__name__}"
    if not isinstance(loaded.needs.options, type) or not issubclass(loaded.needs.options, Block):
        return "the options of its needs are no class derived from specc.compiler.config.block.Block"
    for what, ops in (("forwards", loaded.forwards), ("ops", loaded.ops)):
        if not isinstance(ops, tuple) or not all(isinstance(op, OpDef) for op in ops):
            return f"its {what} are no tuple of specc.compiler.ir.opdef.OpDef"
    return None
