"""Architectures under the names of GPUs, those of this machine, and what is suggested for a typo."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from specc.cli.doctor import rows
from specc.cli.main import app
from specc.compiler.config.archs import ARCHS, GPUS, NATIVE, arch_hint
from specc.compiler.config.schema import json_schema

from .conftest import VALID, Find, Load

DOCS = Path(__file__).parents[4] / "docs/config.md"


def with_archs(words: str) -> str:
    """Return the valid configuration for other architectures."""
    return VALID.replace("[sm_90, sm_100]", f"[{words}]")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Return the GPUs of this machine, to be changed."""
    gpus: list[SimpleNamespace] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpus[index])
    return gpus


@pytest.mark.parametrize(
    ("words", "archs"),
    [
        ("h100", ("sm_90",)),
        ("H100, h200, GH200", ("sm_90",)),
        ("A100, B200, l40s, MI300X", ("sm_80", "sm_100", "sm_89", "gfx942")),
        ("RTX 4090, rtx-3090, NVIDIA GeForce RTX 5090", ("sm_89", "sm_86", "sm_120")),
        ("NVIDIA A10, AMD Instinct MI250X, Tesla_L4", ("sm_86", "gfx90a", "sm_89")),
        ("SM_90, sm100, GFX942", ("sm_90", "sm_100", "gfx942")),
    ],
)
def test_names_of_gpus(load: Load, words: str, archs: tuple[str, ...]) -> None:
    assert load(with_archs(words)).config.archs == archs


def test_every_gpu_is_documented() -> None:
    """And its name is one that the schema completes."""
    rows_of = re.findall(r"^\| `(\w+)` \| (`[a-z].*`) \|$", DOCS.read_text(), re.MULTILINE)
    documented = {name: arch for arch, names in rows_of for name in re.findall(r"`(\w+)`", names) if arch in ARCHS}
    assert documented == dict(GPUS)
    words = json_schema(())["properties"]["archs"]["items"]["enum"]
    assert words == [*ARCHS, *GPUS, NATIVE]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("sm_91", "did you mean 'sm_90'?"),
        ("sm_101", "did you mean 'sm_100'?"),
        ("rtx4050", "did you mean 'rtx4060'?"),
        ("mi300", "known: "),
        ("h1000", "known: "),
        ("v100", "known: "),
        ("t4", "known: "),
        ("gfx1100", "known: "),
        ("sm_70", "known: "),
        ("x" * 300, "known: "),
        ("é²", "known: "),
    ],
)
def test_what_is_suggested(find: Find, word: str, hint: str) -> None:
    """Nothing of another maker or generation: what is compiled for one does not run on another."""
    (diagnostic,) = find(with_archs(f"sm_90, '{word}'"))
    assert (diagnostic.code, str(diagnostic.location)) == ("config/unknown-arch", "c.yaml:11:16")
    assert (diagnostic.hint or "").startswith(hint)
    assert arch_hint(word) == diagnostic.hint


@pytest.mark.parametrize("words", ["h100, H100", "sm_90, SM_90"])
def test_a_word_twice(find: Find, words: str) -> None:
    (diagnostic,) = find(with_archs(words))
    assert (diagnostic.code, diagnostic.location and diagnostic.location.line) == ("config/out-of-range", 11)


@pytest.mark.engines
def test_the_gpus_of_this_machine(load: Load, machine: list[SimpleNamespace]) -> None:
    machine += [SimpleNamespace(name="H200", major=9, minor=0)] * 2
    assert load(with_archs("a100, Native")).config.archs == ("sm_80", "sm_90")
    assert ("GPU 1", "H200, sm_90", True) in [(row.what, row.value, row.good) for row in rows()]


def test_gpus_of_amd(monkeypatch: pytest.MonkeyPatch, load: Load, machine: list[SimpleNamespace]) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    machine.append(SimpleNamespace(name="MI300X", gcnArchName="gfx942:sramecc+:xnack-"))
    assert load(with_archs("native")).config.archs == ("gfx942",)


@pytest.mark.parametrize("gpus", [[], [SimpleNamespace(name="V100", major=7, minor=0)]], ids=["none", "old"])
def test_no_gpu_to_compile_for(
    find: Find, tmp_path: Path, machine: list[SimpleNamespace], gpus: list[SimpleNamespace]
) -> None:
    machine += gpus
    (error,) = find(with_archs("sm_90, native"))
    assert (error.code, str(error.location)) == ("config/no-gpu", "c.yaml:11:16")
    assert "V100 (sm_70)" in error.message or not gpus
    (tmp_path / "c.yaml").write_text(VALID)
    result = CliRunner().invoke(app, ["build", str(tmp_path / "c.yaml"), "--arch", "native"])
    assert result.exit_code == 2


def test_gpus_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(VALID)
    result = CliRunner().invoke(app, ["build", str(tmp_path / "c.yaml"), "--arch", "h100,v100", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "unknown architecture 'v100'" in result.output
