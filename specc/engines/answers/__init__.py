"""What engines themselves say of their arguments and model classes, in files that `make answers` writes.

A file is of one release of one engine, and its code has written all of it: which arguments its server has, which
classes of models it loads, which targets draft with modules of their own, and tables of what it takes where nothing is
written. A test compares the files with the engines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class OwnModules:
    """Modules of multi-token prediction that an engine finds in a target's own directory.

    Attributes:
        architecture: the engine's class of them; None for a target that the engine refuses to draft with.
        count: how many there are, or the key of config.json that says it; None where nothing does.

    """

    architecture: str | None
    count: int | str | None


@dataclass(frozen=True)
class Answers:
    """What one release of an engine says of itself.

    Attributes:
        version: the release.
        arguments: names of all arguments of its server, aliases among them.
        architectures: names of all classes of models that it loads, by ``architectures`` of config.json.
        heads: those of them that read a target's hidden states; empty where nobody asked.
        modules: by a target's class, or else by its ``model_type``, the modules that it brings.
        tables: by name what it takes by itself; the engine's own rooms here say how a table is read.
        algorithms: names of its algorithms of speculation; empty where nobody asked.
        hybrid: classes that keep a recurrent state whose size decides that of a block of keys and values.

    """

    version: str
    arguments: frozenset[str]
    architectures: frozenset[str]
    modules: Mapping[str, OwnModules]
    tables: Mapping[str, Mapping[str, Any]]
    algorithms: frozenset[str] = frozenset()
    hybrid: frozenset[str] = frozenset()
    heads: frozenset[str] = frozenset()

    def modules_of(self, architecture: str, model_type: str) -> OwnModules | None:
        """Return the modules of a target of this class and type; None for one that brings none."""
        return self.modules.get(architecture) or self.modules.get(model_type)


@cache
def answers_of(engine: str, version: str) -> Answers:
    """Return the answers of a release of an engine, by the engine's name in `specc.compiler.config.presets`."""
    said = json.loads((FOLDER / f"{engine}-{version}.json").read_text(encoding="utf-8"))
    return Answers(
        version=said["version"],
        arguments=frozenset(said["arguments"]),
        architectures=frozenset(said["architectures"]),
        modules={name: OwnModules(*of_target) for name, of_target in said["modules"].items()},
        tables={name: table for name, table in said.items() if name != "modules" and isinstance(table, dict)},
        algorithms=frozenset(said.get("algorithms", ())),
        hybrid=frozenset(said.get("hybrid", ())),
        heads=frozenset(said.get("heads", ())),
    )
