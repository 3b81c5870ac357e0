"""Finding a generated package, and what is said when there is none."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fakes import program as fake_program

from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.errors import EngineError
from specc.lab.engine.wheel import batch_type, load_program, package

from .conftest import NAME, source_of_package
from .models_for_tests import make_drafts, make_target

WHEEL = f"{NAME}-0.1.0-py3-none-any.whl"


def message_of(name: str) -> str:
    """Return what is said about a package that cannot be used."""
    with pytest.raises(DiagnosticError) as caught, package(name):
        pass
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "run/wheel-missing"
    assert diagnostic.hint
    return diagnostic.message


def make_wheel(path: Path, **more: object) -> Path:
    """Write a wheel with the fake program."""
    target = make_target()
    plan = fake_program.make_plan(target, make_drafts(target)["twin"], **more)
    with zipfile.ZipFile(path / WHEEL, "w") as archive:
        archive.writestr(f"{NAME}/__init__.py", source_of_package(plan))
    return path / WHEEL


def test_an_importable_package(fake_package: Callable[..., ModuleType]) -> None:
    module = fake_package()
    with package(NAME) as imported:
        assert imported is module


def test_a_wheel_file_leaves_nothing_behind(tmp_path: Path) -> None:
    before = list(sys.path)
    for page_size in (1, 16):
        with package(str(make_wheel(tmp_path, page_size=page_size))) as module:
            program = load_program(module, "cpu")
            assert program.plan.kv.page_size == page_size
            assert batch_type(program) is fake_program.Batch
        assert sys.path == before
        assert NAME not in sys.modules


@pytest.mark.parametrize("name", ["specc_no_such", "specc_no_such.inner", "not a name", "", "json"])
def test_names_that_are_no_generated_package(name: str) -> None:
    assert repr(name) in message_of(name) or "cannot import" in message_of(name)


def test_wheel_files_that_are_none(tmp_path: Path) -> None:
    assert message_of(str(tmp_path / WHEEL)).endswith("-any.whl': there is no such file")
    assert message_of(str(tmp_path / "*.whl")) == f"cannot read the wheel '{tmp_path}/*.whl': no file matches it"
    (tmp_path / WHEEL).write_text("not a zip")
    assert "cannot read the wheel" in message_of(str(tmp_path / WHEEL))
    (tmp_path / "odd.whl").write_text("")
    assert "cannot read the wheel" in message_of(str(tmp_path / "odd.whl"))


def test_what_the_runtime_refuses_is_a_diagnostic() -> None:
    class SpeccError(Exception):
        pass

    class UnsupportedDeviceError(SpeccError):
        pass

    def load(device: str) -> None:
        raise UnsupportedDeviceError(f"no code for {device}")

    module = SimpleNamespace(load=load, __name__=NAME)
    with pytest.raises(DiagnosticError, match=f"cannot load {NAME}: no code for cuda:0") as caught:
        load_program(module, "cuda")
    assert caught.value.diagnostics[0].code == "run/wheel-unusable"


def test_a_program_without_a_batch_type() -> None:
    with pytest.raises(EngineError, match="no Batch"):
        batch_type(object())


def test_a_package_whose_runtime_lacks_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).mkdir()
    text = f"def load(): ...\ndef __getattr__(name):\n    import {NAME}.errors\n"
    (tmp_path / NAME / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert message_of(NAME) == f"{NAME!r} is damaged: No module named '{NAME}.errors'"
    sys.modules.pop(NAME, None)
