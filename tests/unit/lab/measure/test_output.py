"""A measurement as a table, JSON and a picture, from figures that are made here."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console

from specc.lab.measure.results.plot import draw
from specc.lab.measure.results.ratios import Ratio, Spread
from specc.lab.measure.results.records import BucketFigures, Figures, Measurement
from specc.lab.measure.results.table import tables
from specc.lab.measure.steps import known

NAMES = {"prepare_rows": (2.9, 2.2), "verify_argmax": (8.1, 3.9), "extend_argmax": (5.5, 2.4)}


def spread(value: float) -> Spread:
    return Spread(value, value * 0.9, value * 1.1)


def figures(name: str, us: float, floor: float) -> Figures:
    return Figures(
        name,
        name if name != "step" else None,
        64,
        4,
        12345,
        spread(us),
        spread(floor),
        Ratio.of([us, us], [floor, floor]),
    )


def recorded() -> Measurement:
    launches = tuple(figures(name, *times) for name, times in NAMES.items())
    buckets = tuple(BucketFigures(bucket, launches, figures("step", 16.5, 8.5)) for bucket in (1, 8))
    return Measurement("toy", "EAGLE", 2, "Some GPU", "sm_90", {"specc": "0.1.0"}, buckets)


def text(measurement: Measurement, width: int) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        for part in tables(measurement):
            console.print(part)
    return captured.get()


@pytest.mark.parametrize("width", [80, 160])
def test_the_table(width: int) -> None:
    output = text(recorded(), width)
    assert "toy: EAGLE, shape 2, on Some GPU" in output and output.count("bucket ") == 2
    assert all(len(line) <= width for line in output.splitlines())
    line = next(line for line in output.splitlines() if "verify_argmax" in line)
    assert line.split() == ["verify_argmax", "64", "4", "12,345", "8.10", "3.90", "2.08", "(2.08..2.08)"]
    step = next(line for line in output.splitlines() if line.strip().startswith("step"))
    assert step.split()[:4] == ["step", "64", "12,345", "16.50"]


def test_the_record() -> None:
    read = json.loads(json.dumps(recorded().record()))
    assert read["gpu"] == "Some GPU" and [bucket["bucket"] for bucket in read["buckets"]] == [1, 8]
    launch = read["buckets"][0]["launches"][1]
    assert (launch["name"], launch["us"]["median"], launch["floor_us"]["low"]) == ("verify_argmax", 8.1, 3.9 * 0.9)
    assert launch["ratio"]["median"] == pytest.approx(8.1 / 3.9)


def test_the_picture(tmp_path: Path) -> None:
    """A bar and a mark for every launch in every bucket, named; the same figures are the same bytes."""
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg", "three.png"):
        draw(recorded(), tmp_path / name)
    svg = (tmp_path / "one.svg").read_text()
    assert svg == (tmp_path / "two.svg").read_text()
    assert (tmp_path / "three.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    drawn = ElementTree.fromstring(svg)
    assert drawn.tag.endswith("svg") and all(svg.count(f"<!-- {name} -->") == 2 for name in NAMES)
    assert svg.count("#4c78a8") == 2 * len(NAMES) and "<!-- 2.1 x -->" in svg


def test_a_picture_of_no_format(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="xyz"):
        draw(recorded(), tmp_path / "one.xyz")


def test_what_is_known_without_a_gpu() -> None:
    from specc.compiler.driver.build import build_program

    from .conftest import CHAIN, load

    build = build_program(load(CHAIN))
    (single, four) = known(build.plan, [1, 4])
    names = [launch.name for launch in single.launches]
    assert names == ["prepare_rows", "draft_argmax", "verify_argmax", "extend_argmax"]
    assert four.step.bytes == sum(launch.bytes for launch in four.launches) > 3 * single.step.bytes
    assert all(launch.us is None and launch.ratio is None for launch in (*single.launches, single.step))
    output = text(Measurement("toy", "EAGLE", 2, None, None, {}, (single, four)), 80)
    assert "not measured: no GPU" in output and "floor" not in output
