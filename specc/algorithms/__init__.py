"""The algorithms: one file each, found by name. Plugins register under the entry point group ``specc.algorithms``.

An algorithm is a function that writes its graph. Nothing else in specc knows any algorithm's name.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from specc.algorithms.base import Algorithm
from specc.algorithms.dflash import DFLASH
from specc.algorithms.eagle import EAGLE
from specc.algorithms.eagle3 import EAGLE3
from specc.algorithms.frozen_kv_mtp import FROZEN_KV_MTP
from specc.algorithms.multi_layer_eagle import MULTI_LAYER_EAGLE
from specc.algorithms.ngram import NGRAM
from specc.algorithms.standalone import STANDALONE
from specc.config import Needs
from specc.ir.ops import add_forward

__all__ = ["Algorithm", "algorithm", "names", "needs"]

_ALL = (STANDALONE, EAGLE, EAGLE3, FROZEN_KV_MTP, MULTI_LAYER_EAGLE, DFLASH, NGRAM)
_BUILT_IN = {found.name: found for found in _ALL}


def names() -> tuple[str, ...]:
    """Names of all installed algorithms, built-in ones first."""
    plugins = {point.name.upper() for point in entry_points(group="specc.algorithms")}
    return (*_BUILT_IN, *sorted(plugins - set(_BUILT_IN)))


def algorithm(name: str) -> Algorithm:
    """The algorithm of this name.

    Raises:
        KeyError: no such algorithm is installed.
        TypeError: a plugin's entry point is not an `Algorithm`, or one of its forwards is not one.

    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for point in entry_points(group="specc.algorithms"):
        if point.name.upper() == name:
            found = point.load()
            if not isinstance(found, Algorithm):
                raise TypeError(f"entry point {point.value} is not a specc.algorithms.Algorithm")
            for forward in found.forwards:
                add_forward(forward)
            return found
    raise KeyError(name)


def needs(name: str) -> Needs:
    """What the algorithm of this name asks of a configuration; raises as `algorithm`."""
    return algorithm(name).needs
