"""References of ops that a plugin brought: functions of Python files in the package of the program."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from ..errors import DamagedWheelError
from ..plan.files.manifest import Manifest
from ..plan.plan import Plan
from ..semantics.convention import Semantics


def load_ops(plans: Iterable[Plan], manifest: Manifest, root: Path) -> dict[str, Semantics]:
    """The references by op, of the package folder `root`.

    DamagedWheelError when a file is none that the manifest lists, cannot be run, or has no such function.
    """
    ops = {name: at for plan in plans for name, at in plan.ops.items()}
    if foreign := sorted({at.source for at in ops.values()} - manifest.files.keys()):
        raise DamagedWheelError(f"the plan names references in {', '.join(foreign)}, which the wheel does not hold")
    modules = {source: _run(root, source) for source in sorted({at.source for at in ops.values()})}
    semantics: dict[str, Semantics] = {}
    for name, at in ops.items():
        if not callable(getattr(modules[at.source], at.function, None)):
            raise DamagedWheelError(f"{at.source} has no function {at.function!r}, the reference of {name}")
        semantics[name] = getattr(modules[at.source], at.function)
    return semantics


def _run(root: Path, source: str) -> ModuleType:
    """The file as a module, below the name of the package: what is the same file in another program is another one."""
    name = f"{root.name}.{source.removesuffix('.py').replace('/', '.')}"
    spec = importlib.util.spec_from_file_location(name, root / source)
    if spec is None or spec.loader is None:
        raise DamagedWheelError(f"{source} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the file does
        raise DamagedWheelError(f"{source} cannot be run: {type(error).__name__}: {error}") from error
    return module
