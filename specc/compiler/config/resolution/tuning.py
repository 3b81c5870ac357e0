"""The file that `tuning:` names: choices that a search on a GPU has made, with the line of each."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from specc.compiler.config.block import Block
from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import settled_shapes, sound_shapes
from specc.compiler.config.rules.written_file import Written
from specc.compiler.config.text.locations import Locations
from specc.compiler.config.text.scalars import spell
from specc.compiler.config.text.tree import read_tree
from specc.compiler.support.diagnostics import Diagnostic, Diagnostics, Findings, Note
from specc.compiler.support.files.paths import path_of
from specc.compiler.support.files.reading import read_regular, why_unreadable
from specc.compiler.support.location import Location

MAX_BYTES, MAX_VALUES = 1 << 20, 1 << 14
"""The most that a file may have. A search writes an entry for each kernel and shape, with a value for each bucket: the
largest program of specc's algorithms takes half of that."""


def _text_of_number(value: object) -> object:
    """A chain's name is a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _plain_number(value: object) -> object:
    """A key is a text, of which each number has one."""
    if not isinstance(value, str) or not re.fullmatch(r"[1-9]\d{0,9}", value, re.ASCII):
        raise ValueError("a bucket is a number from 1 on")
    return int(value)


def _listed(value: object) -> object:
    """One launch stands by itself."""
    return [value] if isinstance(value, str) else value


_Count = Annotated[int, Field(strict=True, ge=1, le=65535)]
_Bucket = Annotated[int, BeforeValidator(_plain_number)]
_Text = Annotated[str, Field(min_length=1, max_length=256)]
_Launches = Annotated[list[_Text], BeforeValidator(_listed), Field(min_length=1)]
_Shape = Annotated[str, BeforeValidator(_text_of_number), Field(min_length=1, max_length=32)]


class ChoiceBlock(Block):
    """An entry of ``launches``: of one, or of several for which the same was chosen."""

    launch: _Launches
    shape: _Shape | None = None
    tile: _Count | None = None
    warps: _Count | None = None
    stages: _Count | None = None
    split: dict[_Bucket, _Count] = Field(default_factory=dict[int, int])


class TuningFile(Block):
    """The keys of a tuning file."""

    gpu: _Text
    arch: _Text
    specc: _Text
    triton: _Text
    launches: list[ChoiceBlock]


def read_tuning(written: Written, needs: Needs) -> Findings[Tuning | None]:
    """Return what the file says that ``tuning:`` names; None without one, or where it cannot be read.

    Raises:
        DiagnosticError: what is wrong in it, with its text.
    """
    name = written.file.tuning
    if name is None:
        return None
    try:
        path = path_of(name, written.directory)
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else why_unreadable(error)
        message = f"cannot read the tuning file '{name[:200]}': {why}"
        hint = "specc tune writes one; or leave tuning out"
        yield Diagnostic("tuning/unreadable", message, written.places.value("tuning"), hint)
        return None
    file = "".join(char if " " <= char <= "~" else ascii(char)[1:-1] for char in name)
    findings = Diagnostics()
    tree = read_tree(text, file, findings, MAX_VALUES)
    tuning = None
    if tree is not None and not findings.errors:
        places = Locations(file, tree)
        block = findings.collect(_validated(places))
        if block is not None:
            tuning = _tuning(block, places, text, str(path))
            findings.collect(_check(written, needs, tuning, places))
    findings.raise_if_errors({file: text}, {file: str(path)})
    return tuning


def _validated(places: Locations) -> Findings[TuningFile | None]:
    """Return what stands in the file, None after reporting."""
    try:
        return TuningFile.model_validate(places.tree.values)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path = details["loc"][:-1] if details["loc"][-1:] == ("[key]",) else details["loc"]
            kind = details["type"]
            place = places.key(*path) if kind == "extra_forbidden" else places.value(*path)
            what = {"extra_forbidden": "is no key of a tuning file", "missing": "is missing"}.get(kind)
            message = f"{spell(path)} {what or 'is wrong: ' + details['msg'].lower()}"
            yield Diagnostic("tuning/malformed", message, place, "docs/tuning.md has the keys")
        return None


def _tuning(block: TuningFile, places: Locations, text: str, path: str) -> Tuning:
    choices = tuple(
        LaunchChoice(launch, entry.shape, entry.tile, entry.warps, entry.stages, entry.split, place)
        for i, entry in enumerate(block.launches)
        for j, launch in enumerate(entry.launch)
        for place in [_place(places, "launches", i, "launch", j)]
    )
    return Tuning(block.arch, block.gpu, block.specc, block.triton, choices, text, places.file, path)


def _place(places: Locations, *path: str | int) -> Location:
    """The place of an item of a list, or of the one value that stands for the list."""
    return places.value(*path if places.written(*path) else path[:-1])


def _check(written: Written, needs: Needs, tuning: Tuning, places: Locations) -> Findings[None]:
    """Compare with the configuration what needs no compiled program: architecture, shapes, buckets, one entry each."""
    file = written.file
    if written.sound("archs") and list(file.archs) not in ([tuning.arch], ["native"]):
        note = Note(f"the program is for {', '.join(file.archs)}", written.places.value("archs"))
        message = f"the choices were measured on {tuning.arch}, and hold for a program of that architecture alone"
        hint = f"write archs: [{tuning.arch}], or leave tuning out"
        yield Diagnostic("tuning/arch", message, places.value("arch"), hint, (note,))
    seen: set[tuple[str, str]] = set()
    sound = sound_shapes(written) and written.sound("buckets")
    buckets = {str(shape): sizes for shape, sizes in settled_shapes(file, needs).items()} if sound else {}
    known = list(buckets)
    for i, choice in enumerate(tuning.choices):
        shapes = known if choice.shape is None else [choice.shape]
        if choice.shape is not None and known and choice.shape not in known:
            message = f"the program has no shape {choice.shape}; there is {', '.join(known)}"
            yield Diagnostic("tuning/no-launch", message, places.value("launches", i, "shape"))
        twice = [shape for shape in shapes if (choice.launch, shape) in seen]
        if twice:
            message = f"{choice.launch} has an entry already"
            yield Diagnostic("tuning/no-launch", message, choice.location, "write one entry for a launch")
        seen |= {(choice.launch, shape) for shape in shapes}
        there = sorted({bucket for shape in shapes for bucket in buckets.get(shape, ())})
        for bucket in choice.split:
            if there and bucket not in there:
                listed = ", ".join(map(str, there))
                message = f"the program has no bucket of {bucket}; there are {listed}"
                yield Diagnostic("tuning/no-choice", message, places.key("launches", i, "split", str(bucket)))
