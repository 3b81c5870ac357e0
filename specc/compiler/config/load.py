"""A configuration file on disk -> `LoadedConfig`, or one DiagnosticError with everything that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specc.compiler.config.models import ModelFacts
from specc.compiler.config.models.hub import model_path
from specc.compiler.config.presets import Engine
from specc.compiler.config.resolution.resolve import resolve
from specc.compiler.config.resolved import Config
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import ALONE, path_of
from specc.compiler.config.rules.validate import validate
from specc.compiler.config.text.locations import Locations
from specc.compiler.config.text.tree import read_tree
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError, Diagnostics
from specc.compiler.support.files.reading import read_regular, why_unreadable
from specc.compiler.support.location import Location

MAX_BYTES = 1 << 17
"""Largest file that is read, in bytes."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, the text it came from, and the place of every value in it.

    ``file`` is the bare file name used in locations and generated text, in printable ASCII; ``path`` leads to the file;
    ``facts`` are what the model directories of ``target`` and ``draft`` say.
    """

    config: Config
    source: str
    file: str
    path: Path
    locations: Locations
    warnings: tuple[Diagnostic, ...] = ()
    facts: Mapping[str, ModelFacts] = field(default_factory=dict[str, ModelFacts])

    def location(self, *key_path: str | int) -> Location:
        """Return where a value was written; else its key, the block around it, or the first key.

        ``location("target", "hidden_size")``, ``location("buckets", 2)``. Where shapes are listed, ``num_steps``,
        ``topk``, ``num_draft_tokens`` and ``budget`` are those of this one, and ``buckets``, where it has its own.
        """
        block = path_of(self.config.file, self.config.shape)
        key = key_path[0] if key_path else None
        own = key in ALONE or (key == "buckets" and self.locations.written(*block, "buckets"))
        return self.locations.value(*(block if own else ()), *key_path)

    def shapes(self) -> list[LoadedConfig]:
        """One for each shape that is compiled for, the deepest first."""
        return [replace(self, config=self.config.at(shape)) for shape in reversed(self.config.shapes)]

    def model_dir(self, role: str) -> Path | None:
        """Return the directory of the ``target`` or ``draft`` model; None when it has none."""
        model = self.config.target if role == "target" else self.config.draft
        return None if model is None or model.model is None else model_path(model.model, self.path.parent)

    @property
    def sources(self) -> dict[str, str]:
        """File name -> text, as the renderer of diagnostics takes it."""
        tuning = self.config.tuning
        return ({} if tuning is None else {tuning.file: tuning.text}) | {self.file: self.source}

    @property
    def paths(self) -> dict[str, str]:
        """File name -> path to show to people."""
        tuning = self.config.tuning
        return ({} if tuning is None else {tuning.file: tuning.path}) | {self.file: str(self.path)}


def load_config(
    path: Path, algorithms: Sequence[str], needs: Callable[[str], Needs], engine: Engine | None = None
) -> LoadedConfig:
    """Load, check and complete the configuration at ``path``, as `load_text` does its text."""
    return load_text(_read(Path(path)), Path(path), algorithms, needs, engine)


def load_text(
    text: str | bytes,
    path: Path,
    algorithms: Sequence[str],
    needs: Callable[[str], Needs],
    engine: Engine | None = None,
    settled: Mapping[str, object] = MappingProxyType({}),
) -> LoadedConfig:
    """Check and complete a text that would stand at ``path`` (which need not exist).

    ``algorithms`` are the names that exist; ``needs`` says what the one of a name asks for; ``engine`` stands in place
    of the file's own. ``settled``: keys, or blocks of keys, that count in place of what is written; one of None counts
    as not written.

    Raises DiagnosticError with every error of the text.
    """
    name = path.name or str(path)
    file = "".join(char if " " <= char <= "~" else ascii(char)[1:-1] for char in name)  # as generated text takes it
    text = text if isinstance(text, str) else _decoded(text, path, file)
    findings = Diagnostics()
    tree = read_tree(text, file, findings)
    if tree is not None:
        if engine is not None:
            tree.values["engine"] = engine
            tree.broken.discard(("engine",))
        _settle(tree.values, settled)
        places = Locations(file, tree)
        written = findings.collect(validate(places, path.parent))
        try:
            resolved = resolve(written, algorithms, needs, findings)
        except DiagnosticError as error:  # a plugin's
            for diagnostic in error.diagnostics:
                findings.add(replace(diagnostic, location=diagnostic.location or places.value("algorithm")))
            every = (*findings.errors, *findings.warnings)
            raise DiagnosticError(every, {**error.sources, file: text}, {**error.paths, file: str(path)}) from error
        if resolved is not None:
            return LoadedConfig(resolved.config, text, file, path, places, findings.warnings, resolved.facts)
    findings.raise_if_errors({file: text}, {file: str(path)})
    raise AssertionError("a configuration that does not resolve has an error")


def _settle(values: dict[str, Any], settled: Mapping[str, Any]) -> None:
    """Put settled keys in place of those that are written; None takes one away."""
    for key, value in settled.items():
        if isinstance(value, Mapping):
            written = values.get(key)
            values[key] = dict(written) if isinstance(written, dict) else {}
            _settle(values[key], value)
        elif value is None:
            values.pop(key, None)
        else:
            values[key] = value


def _read(path: Path) -> bytes:
    """Return what is in the file; raises DiagnosticError when there is nothing to read."""
    try:
        return read_regular(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise DiagnosticError(
            Diagnostic("config/unreadable", f"cannot read '{path}': {why_unreadable(error)}")
        ) from error


def _decoded(data: bytes, path: Path, file: str) -> str:
    """Return the text of a file; raises DiagnosticError at the first byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", errors="replace")
        at = Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"), 1)
        message = f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        diagnostic = Diagnostic("config/encoding", message, at, "save the file as UTF-8")
        sources = {file: data.decode("utf-8", errors="replace")}
        raise DiagnosticError(diagnostic, sources, {file: str(path)}) from error
