"""docs/plugins.md: its blocks are a plugin, a configuration and an engine, and the engine's texts are greedy ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from plugin_page import install_page

ROOT = Path(__file__).resolve().parents[2]
BUILD = """
from pathlib import Path
from specc.compiler.algorithms import names, needs
from specc.compiler.driver.build import build_program
from specc.compiler.config import load_config
from specc.compiler.driver.wheel.build_wheel import emit_wheel
emit_wheel(build_program(load_config(Path("medusa.yaml"), names(), needs)), Path("dist"))
"""


def run(folder: Path, *command: str) -> str:
    """Run Python in the folder, with what lies in it and specc."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The blocks of the page as files, each put together of those that name it, and the plugin installed."""
    folder = tmp_path_factory.mktemp("page")
    install_page(folder)
    return folder


def test_the_texts_are_the_targets_own(folder: Path) -> None:
    """And accepted drafts make the steps fewer than the tokens."""
    run(folder, "-c", BUILD)
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    assert (folder / "specc_program_medusa" / "ops" / "specc_medusa_reference.py").is_file()
    output = run(folder, "engine.py")
    match = re.fullmatch(r"3 texts are the target's own, in (\d+) steps\n", output)
    assert match
    assert 15 <= int(match[1]) < 40


def test_without_its_tile_the_op_is_left_to_torch(folder: Path, tmp_path: Path) -> None:
    for path in [*folder.glob("*.py"), *folder.glob("*.yaml"), *folder.glob("specc_medusa-*")]:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    plugin = tmp_path / "specc_medusa.py"
    text = plugin.read_text()
    plugin.write_text(text.replace('    tile=Path(__file__).with_name("specc_medusa_tile.py"),\n', ""))
    assert plugin.read_text() != text
    explained = run(tmp_path, "-m", "specc.cli.main", "explain", "medusa.yaml", "--full")
    assert "one graph per step: 4 launches, 1 op by torch, no host sync" in explained
    assert "torch_medusa_ban: medusa.ban runs as its reference, for no kernel computes it here" in explained


def test_what_the_page_says_of_it(folder: Path) -> None:
    explained = run(folder, "-m", "specc.cli.main", "explain", "medusa.yaml", "--full")
    assert "one graph per step: 4 launches, no host sync" in explained
    assert "draft_argmax: argmax over chain.join, health.raise, medusa.ban, vocab.argmax:" in explained
    text = (folder / "medusa.yaml").read_text().replace("num_steps: 3", "num_steps: 5")
    (folder / "deep.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "specc.cli.main", "check", "deep.yaml"],
        capture_output=True, text=True, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[:2] == [
        "error[config/out-of-range]: num_steps is 5, and there are 4 heads",
        " --> deep.yaml:3:12",
    ]
