"""``kernels_generated/`` is exactly what a build writes today: nothing changed, nothing missing, nothing stale.

Device code that kernels share is not in it: a build copies that from ``templates/lib``, which a test here asks.
``pytest tests/golden --update-golden`` rewrites the rest; the difference is then reviewed like any other.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.driver.build import build_program
from specc.compiler.driver.files import EMITTERS

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "kernels_generated"
TEMPLATES = ROOT / "templates" / "lib"
CHAINS = ("standalone-chain", "eagle-chain", "llama-8b-eagle", "qwen3-standalone")
CONFIGS = (*CHAINS, "standalone-chain-block", "standalone-chain-rotated", "eagle-tree-wide", "standalone-tree")
FORMATS = ("specir", "plan", "kernels")
LIB = Path("kernels/lib")


def generate(config: str, directory: Path) -> dict[str, bytes]:
    """Write everything of one configuration but machine code, and take shared device code out again."""
    build = build_program(load_config(ROOT / "examples" / f"{config}.yaml", names(), needs))
    for name in FORMATS:
        EMITTERS[name](build, directory)
    shared = contents(directory / LIB)
    shutil.rmtree(directory / LIB)
    return shared


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    files = [path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("config", CONFIGS)
def test_generated_files(config: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    shared = generate(config, tmp_path)
    assert shared
    assert [name for name in shared if shared[name] != (TEMPLATES / name).read_bytes()] == []
    wanted = GOLDEN / config
    if request.config.getoption("--update-golden"):
        shutil.rmtree(wanted, ignore_errors=True)
        shutil.copytree(tmp_path, wanted)
    new, old = contents(tmp_path), contents(wanted)
    hint = "run pytest tests/golden --update-golden and review the difference"
    assert sorted(new) == sorted(old), hint
    assert [name for name in new if new[name] != old[name]] == [], hint


def test_nothing_else_is_there() -> None:
    assert {path.parts[0] for path in map(Path, contents(GOLDEN))} == {*CONFIGS, "registers.txt"}


def test_no_machine_code_and_no_machine() -> None:
    """Only text, the same on every machine."""
    for name, content in contents(GOLDEN).items():
        assert Path(name).suffix in (".py", ".json", ".specir", ".txt"), name
        text = content.decode()
        assert str(ROOT) not in text, name
        assert "\r" not in text, name
