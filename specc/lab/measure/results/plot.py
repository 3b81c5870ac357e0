"""A measurement as a picture: a bar for every launch, and where its floor is; one for all that was compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specc.lab.measure.results.records import BucketFigures, Measurement

WIDTH, HEIGHT = 9.0, 0.32
"""Inches of a picture, and of a bar."""


def draw(measurement: Measurement, path: Path) -> None:
    """Write a picture of the launches in every bucket, in the format that the file's name ends with.

    Raises:
        ValueError: no format of that name.
        OSError: the file cannot be written.

    """
    rows = [len(bucket.launches) for bucket in measurement.buckets] + (
        [len(measurement.compared)] if measurement.compared else []
    )
    figure, panels = panels_of(rows)
    for panel, bucket in zip(panels, measurement.buckets, strict=False):
        _draw_bucket(panel, bucket)
    if measurement.compared:
        _draw_compared(panels[-1], measurement)
    last = panels[len(measurement.buckets) - 1]
    last.set_xlabel("microseconds; the mark is the floor: an empty launch, or a copy of as many bytes")
    figure.suptitle(f"{measurement.name}: {measurement.algorithm}, shape {measurement.shape}, on {measurement.gpu}")
    save(figure, path, measurement.name)


def panels_of(rows: Sequence[int]) -> tuple[Any, list[Any]]:
    """A figure, and its panels from top to bottom, for so many bars each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, sum(rows) * HEIGHT + 0.9 * len(rows) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rows), 1, squeeze=False, gridspec_kw={"height_ratios": rows})
    return figure, list(panels[:, 0])


def save(figure: Any, path: Path, salt: str) -> None:
    """Write a figure, the same bytes for the same figures and ``salt``; raises as `draw`."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": salt}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_bucket(panel: Any, figures: BucketFigures) -> None:
    """One bucket's bars, the first launch on top."""
    timed = [launch for launch in figures.launches if launch.us is not None and launch.floor_us is not None]
    places = list(range(len(timed)))
    times = [timing.us.median for timing in timed if timing.us is not None]
    floors = [timing.floor_us.median for timing in timed if timing.floor_us is not None]
    panel.barh(places, times, height=0.7, color="#4c78a8")
    panel.vlines(floors, [place - 0.42 for place in places], [place + 0.42 for place in places], color="#e45756", lw=2)
    for place, launch in zip(places, timed, strict=True):
        over = f"{launch.ratio.median:.1f} x" if launch.ratio is not None else ""
        panel.annotate(over, (times[place], place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    panel.set_yticks(places, [timing.name for timing in timed])
    panel.invert_yaxis()
    panel.margins(x=0.12)
    step = figures.step
    whole = f": a step {step.us.median:.1f} us, {step.ratio}" if step.us is not None and step.ratio is not None else ""
    panel.set_title(
        f"bucket {figures.bucket}{whole} times its floor" if whole else f"bucket {figures.bucket}", loc="left"
    )


def _draw_compared(panel: Any, measurement: Measurement) -> None:
    """How many times as long the other side took, with the middle half of the samples."""
    places, times = (
        list(range(len(measurement.compared))),
        [comparison.ratio.median for comparison in measurement.compared],
    )
    panel.barh(places, times, height=0.7, color="#54a24b")
    lows, highs = ([getattr(comparison.ratio, end) for comparison in measurement.compared] for end in ("low", "high"))
    panel.hlines(places, lows, highs, color="k")
    panel.axvline(1, color="#e45756", lw=2)
    panel.set_yticks(places, [f"{comparison.work}, {comparison.bucket}" for comparison in measurement.compared])
    panel.invert_yaxis()
    panel.set_title(f"{measurement.against}: times as long as ours", loc="left")
