"""Measuring on a GPU: every launch and the step have a time and a floor, and inputs are as they were afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specc.cli.main import app

from .conftest import EXAMPLES


@pytest.mark.parametrize("name", ["eagle-chain", "eagle-tree-paged", "ngram-tree", "eagle-tree-sampled"])
def test_every_launch_is_timed(name: str, arch: str) -> None:
    done = CliRunner().invoke(app, ["bench", str(EXAMPLES / f"{name}.yaml"), "--buckets", "1,4", "--format", "json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["gpu"], report["arch"]) == (torch.cuda.get_device_name(), arch)
    for bucket in report["buckets"]:
        launches, step = bucket["launches"], bucket["step"]
        assert all(timed["us"]["median"] > 0 and timed["ratio"]["median"] > 0.5 for timed in (*launches, step))
        assert step["us"]["median"] < 2 * sum(timed["us"]["median"] for timed in launches)
    few, *_, many = report["host"]
    assert 0 < few["us"]["median"] < many["us"]["median"]


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bench.svg"
    words = ["bench", str(EXAMPLES / "eagle-chain.yaml"), "--buckets", "1", "--plot", str(picture)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "verify_argmax" in picture.read_text() and "over floor" in done.stdout
