"""The algorithms: one file each, found by name. Plugins register under the entry point group ``specc.algorithms``.

An algorithm is a function that writes its graph. Nothing else in specc knows any algorithm's name.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from specc.algorithms.base import Algorithm
from specc.algorithms.eagle import EAGLE
from specc.algorithms.standalone import STANDALONE

__all__ = ["Algorithm", "algorithm", "names"]

_BUILT_IN = {found.name: found for found in (STANDALONE, EAGLE)}


def names() -> tuple[str, ...]:
    """Names of all installed algorithms, built-in ones first."""
    plugins = {point.name.upper() for point in entry_points(group="specc.algorithms")}
    return (*_BUILT_IN, *sorted(plugins - set(_BUILT_IN)))


def algorithm(name: str) -> Algorithm:
    """The algorithm of this name.

    Raises:
        KeyError: no such algorithm is installed.
        TypeError: a plugin's entry point is not an `Algorithm`.

    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for point in entry_points(group="specc.algorithms"):
        if point.name.upper() == name:
            found = point.load()
            if not isinstance(found, Algorithm):
                raise TypeError(f"entry point {point.value} is not a specc.algorithms.Algorithm")
            return found
    raise KeyError(name)
