"""Dataclasses to JSON and back by their annotations; whatever does not fit them names its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from specc.runtime.plan.typed import LARGEST, Signed, from_json, read_json, to_json

Json = dict[str, Any]


@dataclass(frozen=True)
class Circle:
    kind: ClassVar[str] = "circle"
    radius: int


@dataclass(frozen=True)
class Square:
    kind: ClassVar[str] = "square"
    corner: tuple[Signed, Signed]
    side: int = 1


@dataclass(frozen=True)
class Colour:
    name: str
    parts: tuple[int, int, int]


@dataclass(frozen=True)
class Label:
    """`kind` is a field, as of arguments."""

    kind: str
    text: str | None


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Circle | Square, ...]
    colours: Mapping[str, Colour]
    labels: Mapping[str, Label]
    layers: Mapping[int, tuple[str, ...]]
    extra: Mapping[str, Any]
    hidden: bool
    shift: Signed | None = None
    tags: tuple[str, ...] = ()


DRAWING = Drawing(
    shapes=(Square((-3, 4)), Circle(0), Square((0, -LARGEST), side=2)),
    colours={"red": Colour("red", (255, 0, 0)), "blue": Colour("blue", (0, 0, LARGEST))},
    labels={"a": Label("title", None), "b": Label("circle", "")},
    layers={10: ("a",), 2: ()},
    extra={"any": [1, {"thing": None}]},
    hidden=False,
)
WRITTEN: Json = {
    "shapes": [
        {"kind": "square", "corner": [-3, 4]},
        {"kind": "circle", "radius": 0},
        {"kind": "square", "corner": [0, -LARGEST], "side": 2},
    ],
    "colours": [{"name": "red", "parts": [255, 0, 0]}, {"name": "blue", "parts": [0, 0, LARGEST]}],
    "labels": {"a": {"kind": "title", "text": None}, "b": {"kind": "circle", "text": ""}},
    "layers": {"10": ["a"], "2": []},
    "extra": {"any": [1, {"thing": None}]},
    "hidden": False,
}


def again() -> Any:
    """The JSON of the drawing, of its own."""
    return read_json(json.dumps(WRITTEN))


def test_what_is_written_is_what_the_annotations_say() -> None:
    assert to_json(DRAWING) == WRITTEN
    assert from_json(Drawing, again(), "it") == DRAWING


def test_what_is_at_its_default_is_left_out() -> None:
    full = Drawing(**{**vars(DRAWING), "shift": -1, "tags": ("x",)})
    assert to_json(full) == WRITTEN | {"shift": -1, "tags": ["x"]}
    assert from_json(Drawing, to_json(full), "it") == full
    assert from_json(Drawing, again() | {"shift": None, "tags": []}, "it") == DRAWING


def test_order_is_kept_of_what_is_listed() -> None:
    data = again()
    data["colours"].reverse()
    read = from_json(Drawing, data, "it")
    assert list(read.colours) == ["blue", "red"]
    assert to_json(read)["colours"] == data["colours"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(hidden=1), "it.hidden is 1"),
        (lambda d: d.update(hidden=None), "it.hidden is None"),
        (lambda d: d["shapes"][1].update(radius="3"), "it.shapes[1].radius is '3'"),
        (lambda d: d["shapes"][1].update(radius=1.0), "it.shapes[1].radius is 1.0"),
        (lambda d: d["shapes"][1].update(radius=-1), "it.shapes[1].radius is -1"),
        (lambda d: d["shapes"][1].update(radius=True), "it.shapes[1].radius is True"),
        (lambda d: d["shapes"][1].update(radius=LARGEST + 1), f"it.shapes[1].radius is {LARGEST + 1}"),
        (lambda d: d["shapes"][0].update(corner=[True, 0]), "it.shapes[0].corner[0] is True"),
        (lambda d: d["shapes"][0].update(corner=[0, -LARGEST - 1]), f"it.shapes[0].corner[1] is {-LARGEST - 1}"),
        (lambda d: d["shapes"][0].update(corner=[0]), "it.shapes[0].corner is [0]"),
        (lambda d: d["shapes"][0].update(corner=[0, 0, 0]), "it.shapes[0].corner is [0, 0, 0]"),
        (lambda d: d["shapes"][0].update(corner={}), "it.shapes[0].corner is {}"),
        (lambda d: d["shapes"][0].update(kind="line"), "the kind of it.shapes[0] is 'line'"),
        (lambda d: d["shapes"][0].update(kind=["square"]), "the kind of it.shapes[0] is ['square']"),
        (lambda d: d["shapes"][0].pop("kind"), "the kind of it.shapes[0] is None"),
        (lambda d: d["shapes"].append("circle"), "the kind of it.shapes[3] is None"),
        (lambda d: d["shapes"][0].update(kind="circle"), "it.shapes[0] has 'corner', which nothing reads"),
        (lambda d: d["shapes"][0].pop("corner"), "it.shapes[0] has no 'corner'"),
        (lambda d: d.update(shapes="ab"), "it.shapes is 'ab'"),
        (lambda d: d.update(shift=True), "it.shift is True"),
        (lambda d: d.update(shift="1"), "it.shift is '1'"),
        (lambda d: d.pop("extra"), "it has no 'extra'"),
        (lambda d: d.update(more=1), "it has 'more', which nothing reads"),
        (lambda d: d["colours"][1].update(kind="colour"), "it.colours[1] has 'kind', which nothing reads"),
        (lambda d: d["colours"].append(d["colours"][0]), "it.colours: key 'red' is there twice"),
        (lambda d: d.update(colours={}), "it.colours is {}"),
        (lambda d: d["colours"][1]["parts"].append(0), f"it.colours[1].parts is [0, 0, {LARGEST}, 0]"),
        (lambda d: d["labels"]["a"].update(text=3), "it.labels.a.text is 3"),
        (lambda d: d["labels"].update(a=[]), "it.labels.a is []"),
        (lambda d: d.update(labels=[]), "it.labels is []"),
        (lambda d: d["layers"].update({"x": []}), "a key of it.layers is 'x'"),
        (lambda d: d["layers"].update({"-1": []}), "a key of it.layers is '-1'"),
        (lambda d: d["layers"].update({"9" * 19: []}), "a key of it.layers is 9999999999999999999"),
        (lambda d: d["layers"].update({"02": []}), "it.layers: key 2 is there twice"),
        (lambda d: d["layers"].update({"10": [1]}), "it.layers.10[0] is 1"),
    ],
)
def test_what_does_not_fit_names_its_place(change: Any, message: str) -> None:
    data = again()
    change(data)
    with pytest.raises(TypeError) as caught:
        from_json(Drawing, data, "it")
    assert str(caught.value) == message


def test_a_long_value_is_cut_off() -> None:
    with pytest.raises(TypeError) as caught:
        from_json(Drawing, again() | {"hidden": "x" * 10_000}, "it")
    assert len(str(caught.value)) < 100
