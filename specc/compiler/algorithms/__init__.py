"""The algorithms: one file each, found by name. Plugins register under the entry point group ``specc.algorithms``.

An algorithm is a function that writes its graph. Nothing else in specc knows any algorithm's name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from specc.compiler.algorithms.blocks.scope import Algorithm
from specc.compiler.algorithms.dflash import DFLASH
from specc.compiler.algorithms.dflash2 import DFLASH2
from specc.compiler.algorithms.dspark import DSPARK
from specc.compiler.algorithms.eagle import EAGLE
from specc.compiler.algorithms.eagle3 import EAGLE3
from specc.compiler.algorithms.frozen_kv_mtp import FROZEN_KV_MTP
from specc.compiler.algorithms.multi_layer_eagle import MULTI_LAYER_EAGLE
from specc.compiler.algorithms.ngram import NGRAM
from specc.compiler.algorithms.plugins.plugin import Plugin
from specc.compiler.algorithms.standalone import STANDALONE
from specc.compiler.config import Needs
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

__all__ = ["Algorithm", "Plugin", "algorithm", "names", "needs", "plugin"]

_ALL = (STANDALONE, EAGLE, EAGLE3, FROZEN_KV_MTP, MULTI_LAYER_EAGLE, DFLASH, DSPARK, DFLASH2, NGRAM)
_BUILT_IN = {algorithm.name: algorithm for algorithm in _ALL}


def names() -> tuple[str, ...]:
    """Names of all installed algorithms, built-in ones first."""
    plugins = {point.name.upper() for point in _points(entry_points, tuple(sys.path))}
    return (*_BUILT_IN, *sorted(plugins - set(_BUILT_IN)))


@cache
def _points(find: Callable[..., Iterable[EntryPoint]], _: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """What plugins register. To find it every distribution is read, and a command asks several times."""
    return tuple(find(group="specc.algorithms"))


def plugin(name: str) -> Plugin | None:
    """The plugin that brings the algorithm of this name; None for one of specc's own.

    Raises:
        DiagnosticError: ``plugin/unusable``, several plugins bring one of this name.
        KeyError: no such algorithm is installed.

    """
    if name in _BUILT_IN:
        return None
    points = [point for point in _points(entry_points, tuple(sys.path)) if point.name.upper() == name]
    plugins = {point.value: Plugin(point) for point in points}
    if len(plugins) > 1:
        message = f"several plugins bring the algorithm {name}: {'; '.join(map(str, plugins.values()))}"
        raise DiagnosticError(Diagnostic("plugin/unusable", message, hint="uninstall all of them but one"))
    if not plugins:
        raise KeyError(name)
    return next(iter(plugins.values()))


def algorithm(name: str) -> Algorithm:
    """The algorithm of this name.

    Raises:
        DiagnosticError: ``plugin/unusable``, it is a plugin's, which cannot be imported or is none.
        KeyError: no such algorithm is installed.

    """
    source = plugin(name)
    return _BUILT_IN[name] if source is None else source.load()


def needs(name: str) -> Needs:
    """What the algorithm of this name asks of a configuration; raises as `algorithm`."""
    if (source := plugin(name)) is None:
        return _BUILT_IN[name].needs
    asked = source.needs(source.load())
    if asked.runs_as not in (None, *_BUILT_IN):
        message = f"the plugin {source}: it runs as {asked.runs_as!r}, which is no algorithm of specc's"
        hint = f"there are {', '.join(_BUILT_IN)}"
        raise DiagnosticError(Diagnostic("plugin/unusable", message, hint=hint))
    return asked
