"""Programs for the GPU of this machine, built once per run and imported from a temporary folder."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest
import torch
from folder_items import items_below

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples"
RUNNABLE = {"standalone-chain": "standalone", "standalone-tree": "standalone"}
RUNNABLE |= {"eagle-chain": "eagle", "eagle-tree": "eagle", "eagle-tree-paged": "eagle", "eagle3-tree": "eagle3"}
RUNNABLE |= {
    "eagle-chain-head": "eagle",
    "eagle-chain-budget": "eagle",
    "mtp-chain": "mtp",
    "dflash-chain": "dflash",
    "dflash-tree": "dflash",
    "dspark-chain": "dspark",
    "dflash2-chain": "dflash2",
    "frozen-kv-tree": "frozen_kv",
    "ngram-tree": "",
}
"""Examples with models of their own, and the folder of the draft, of those that have one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder but test_interpreted.py, and skip it all without a GPU."""
    missing = None if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device"
    for item in items_below(HERE, items):
        if item.path.name != "test_interpreted.py":
            item.add_marker(pytest.mark.gpu)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


@dataclass(frozen=True)
class Built:
    """A program: its wheel, and the folder that holds its unpacked package."""

    wheel: Path
    site: Path
    name: str

    def load_module(self) -> ModuleType:
        """Import the package."""
        return importlib.import_module(self.name)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Keep what runs on the CPU beside the GPU, here and in child processes, off the cores of other tests."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU that is used."""
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def arch(device: torch.device) -> str:
    """The GPU's architecture, one that specc builds for."""
    from specc.compiler.codegen.artifact import KNOWN_ARCHS
    from specc.runtime.backends.cuda import device_arch

    name = device_arch(device)
    if name not in KNOWN_ARCHS:
        pytest.skip(f"specc does not build for {name}")
    return name


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Built]]:
    """Return a function that builds a configuration text for architectures; each only once."""
    site, out = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    done: dict[tuple[str, Sequence[str]], Built] = {}
    sys.path.insert(0, str(site))

    def make(text: str, archs: tuple[str, ...], path: Path = EXAMPLES / "test.yaml") -> Built:
        if (text, archs) not in done:
            done[text, archs] = build_wheel(text, archs, path, out, site)
            importlib.invalidate_caches()
        return done[text, archs]

    yield make
    sys.path.remove(str(site))


def build_wheel(text: str, archs: tuple[str, ...], path: Path, out: Path, site: Path) -> Built:
    """Compile a configuration that would stand at `path`, write its wheel, unpack it into `site`."""
    from specc.compiler.algorithms import names, needs
    from specc.compiler.codegen.cache import Cache
    from specc.compiler.config import load_text
    from specc.compiler.driver.build import build_program, compile_machine_code
    from specc.compiler.driver.wheel.build_wheel import emit_wheel

    result = build_program(load_text(text, path, names(), needs))
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    compile_machine_code(result, archs, cache=Cache.default(), workers=max(1, (os.cpu_count() or 1) // beside))
    (wheel,) = emit_wheel(result, out)
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    return Built(wheel, site, wheel.name.partition("-")[0])


@pytest.fixture(scope="session")
def example(build: Callable[..., Built], arch: str) -> Callable[..., Built]:
    """Return a function that builds `examples/<name>.yaml`, perhaps with a line more, for this GPU alone."""

    def make(name: str, more: str = "") -> Built:
        path = EXAMPLES / f"{name}.yaml"
        return build(path.read_text(encoding="utf-8") + more, (arch,), path)

    return make
