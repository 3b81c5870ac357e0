"""What a tuning file says, once it has been read: a choice for each launch that has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specc.compiler.support.location import Location
from specc.runtime.plan.shape import Shape


@dataclass(frozen=True)
class LaunchChoice:
    """What was chosen for one launch.

    Attributes:
        launch: its name.
        shape: the name of the shape whose launch it is; None for that of every shape.
        tile: elements of a tile of logits; None for specc's own choice, as for the next three.
        warps: warps of a program.
        stages: tiles that are on their way at once.
        split: by bucket, the programs that share a row, or a request's copies.
        location: where it was written.

    """

    launch: str
    shape: str | None = None
    tile: int | None = None
    warps: int | None = None
    stages: int | None = None
    split: Mapping[int, int] = field(default_factory=dict[int, int])
    location: Location | None = None


@dataclass(frozen=True)
class Tuning:
    """A tuning file.

    Attributes:
        arch: the architecture that it was measured on.
        gpu: the GPU's name.
        specc: the version that searched.
        triton: the version of the compiler.
        choices: for launches.
        text: the file as written.
        file: its name in locations, as the configuration writes it.
        path: where it is.

    """

    arch: str
    gpu: str
    specc: str
    triton: str
    choices: tuple[LaunchChoice, ...]
    text: str = ""
    file: str = ""
    path: str = ""

    def of(self, launch: str, shape: Shape) -> LaunchChoice | None:
        """The choice for a launch of a shape."""
        choices = (choice for choice in self.choices if choice.launch == launch and choice.shape in (None, str(shape)))
        return next(choices, None)
