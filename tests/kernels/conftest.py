"""Fixtures of the kernel tests: one launcher per device."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kernel_launcher import INTERPRETED, ON_GPU, PACKAGE, Launcher

from specc.compiler.codegen import render


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks of this folder."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device, and SPECC_TEST_GPU=1")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package folder with the device library in it, importable."""
    root = tmp_path_factory.mktemp("rendered")
    folder = root / PACKAGE
    for name, text in {"__init__.py": "", **render.lib_sources()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sys.path.insert(0, str(root))
    yield folder
    sys.path.remove(str(root))


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def launcher(request: pytest.FixtureRequest, package: Path) -> Launcher:
    """One launcher per device; the device that this run is not about is skipped."""
    if request.param == "cpu":
        if ON_GPU:
            pytest.skip("SPECC_TEST_GPU=1: kernels are compiled in this process, not interpreted")
        if not INTERPRETED:
            pytest.fail("triton was imported before tests/kernels could choose the interpreter")
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    elif not ON_GPU:
        pytest.skip("kernels are interpreted in this process; set SPECC_TEST_GPU=1 to compile and run them")
    return Launcher(request.param, package)
