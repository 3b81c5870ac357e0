"""Serving engines that programs are built for: each is an entry point in the group ``specc.engines``, a `Preset`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from specc.compiler.config.presets.contract import Preset

__all__ = ["ENGINES", "PRESETS", "Engine", "Preset"]

GROUP = "specc.engines"
_POINTS: Mapping[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}
ENGINES = tuple(sorted(_POINTS))
"""The names of all that are installed."""


@cache
def _loaded(name: str) -> Preset:
    """Return the preset of an engine, which nothing imports before it is asked for."""
    preset = _POINTS[name].load()
    assert isinstance(preset, Preset), f"{_POINTS[name].value} of the group {GROUP} is no Preset"
    return preset


class _Presets(Mapping[str, Preset]):
    """The presets by the names of their engines."""

    def __getitem__(self, name: str) -> Preset:
        return _loaded(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ENGINES)

    def __len__(self) -> int:
        return len(ENGINES)


PRESETS: Mapping[str, Preset] = _Presets()
"""What each engine asks of a configuration."""


def _known(value: object) -> str:
    """Return the name of an engine; for anything else pydantic's error of a word that is none of several."""
    if isinstance(value, str) and value in ENGINES:
        return value
    raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, ENGINES)) or "left out"})


Engine = Annotated[str, PlainValidator(_known), WithJsonSchema({"enum": [*ENGINES], "type": "string"})]
"""A key whose value is the name of an engine."""
