"""Measuring on a GPU: every launch and the step have a time and a floor. How long anything takes is not asked."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.driver.build import build_program
from specc.lab.measure.host import NODES
from specc.lab.measure.steps import known
from specc.runtime.plan.plan import Plan

from .conftest import EXAMPLES


@pytest.mark.parametrize("name", ["eagle-chain", "eagle-tree-paged", "ngram-tree", "eagle-tree-sampled"])
def test_every_launch_is_timed(name: str, arch: str) -> None:
    done = CliRunner().invoke(app, ["bench", str(EXAMPLES / f"{name}.yaml"), "--buckets", "1,4", "--format", "json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["gpu"], report["arch"]) == (torch.cuda.get_device_name(), arch)
    planned = known(plan_of(name), (1, 4))
    assert [bucket["bucket"] for bucket in report["buckets"]] == [1, 4]
    for bucket, plan in zip(report["buckets"], planned, strict=True):
        named = [(timed["name"], timed["kernel"]) for timed in bucket["launches"]]
        assert named == [(launch.name, launch.kernel) for launch in plan.launches]
        for timed in (*bucket["launches"], bucket["step"]):
            assert all(is_spread(timed[figure]) for figure in ("us", "floor_us", "ratio")), timed["name"]
    assert [cost["nodes"] for cost in report["host"]] == [*NODES]
    assert all(is_spread(cost["us"]) for cost in report["host"])


def plan_of(name: str) -> Plan:
    """The plan of an example, as `bench` compiles it."""
    return build_program(load_config(EXAMPLES / f"{name}.yaml", names(), needs)).plan


def is_spread(figures: dict[str, float]) -> bool:
    """Whether they are the median of samples and their middle half."""
    return figures["low"] <= figures["median"] <= figures["high"] and all(map(isfinite, figures.values()))


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "bench.svg"
    words = ["bench", str(EXAMPLES / "eagle-chain.yaml"), "--buckets", "1", "--plot", str(picture)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "verify_argmax" in picture.read_text() and "over floor" in done.stdout
