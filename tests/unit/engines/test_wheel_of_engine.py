"""A wheel of an engine carries the adapter and the entry point that the engine finds it by; another carries neither."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

import pytest
from fakes.plans import chain_plan
from fakes.toy_wheel import PACKAGE, installed, toy_wheel

import specc.engines.sglang
from specc.runtime.errors import DamagedWheelError
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import read_plan


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """Where the wheel of a program for SGLang is installed."""
    wheel = toy_wheel(tmp_path / "wheel", plan=read_plan(chain_plan() | {"engine": "sglang"}))
    with installed(wheel, tmp_path / "site"):
        yield tmp_path / "site"


def test_the_adapter_is_copied_byte_for_byte(site: Path) -> None:
    root = Path(specc.engines.sglang.__file__).parent
    sources = {path.relative_to(root): path.read_bytes() for path in root.rglob("*.py")}
    sources = {path: text for path, text in sources.items() if path.parts[0] not in ("check", "commands")}
    folder = site / PACKAGE / "_sglang"
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.py")} == sources
    assert sources


def test_the_engine_finds_it(site: Path) -> None:
    (found,) = distributions(path=[str(site)])
    (plugin,) = found.entry_points.select(group="sglang.srt.plugins")
    assert (plugin.name, plugin.value) == (PACKAGE, f"{PACKAGE}._sglang:register")
    assert callable(getattr(import_module(plugin.module), plugin.attr))
    (program,) = found.entry_points.select(group="specc.programs")
    assert (program.name, program.value) == ("toy_chain", PACKAGE)
    assert "sglang" in str(found.metadata.get_payload())


def test_the_manifest_knows_the_engine_and_the_adapter(site: Path) -> None:
    root = site / PACKAGE
    manifest = Manifest.read(root)
    assert manifest.engine == "sglang"
    manifest.verify(root)
    with (root / "_sglang" / "__init__.py").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(DamagedWheelError, match=r"_sglang/__init__\.py"):
        manifest.verify(root)


def test_a_wheel_without_an_engine_has_no_trace_of_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(toy_wheel(tmp_path)) as archive:
        texts = {name: archive.read(name) for name in archive.namelist() if "/_runtime/" not in name}
        manifest = json.loads(archive.read(f"{PACKAGE}/manifest.json"))
    assert not [name for name, text in texts.items() if b"sglang" in text.lower() or "sglang" in name]
    assert "engine" not in manifest
    assert Manifest.from_json(manifest).engine is None
