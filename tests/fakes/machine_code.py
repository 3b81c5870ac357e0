"""Builds of the command line whose machine code is invented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from specc.compiler.driver.build import Build

from .toy_wheel import toy_artifact


def invent_machine_code(build: Build, archs: Sequence[str], **_: Any) -> None:
    """What stands for `compile_machine_code` where nobody asks what is in it."""
    build.artifacts = {(each.name, arch): toy_artifact(each.name, arch) for each in build.sources for arch in archs}


@contextmanager
def with_invented_code() -> Iterator[None]:
    """Let builds of commands have invented machine code, in seconds less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specc.compiler.driver.build.compile_machine_code", invent_machine_code)
        yield
