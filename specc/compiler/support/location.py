"""Where something was written: the unit in which every diagnostic and every op points back."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Location:
    """A place in a text file.

    ``line`` and ``column`` are 1-based and count code points. ``file`` is the name as shown to people and
    written into generated text, so it is a bare file name, never a machine's path. ``length`` is how many
    code points of that line the caret covers; 0 means unknown (the renderer then marks the word it finds
    there). ``length`` serves display only: two locations are equal without it.
    """

    file: str
    line: int
    column: int
    length: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Reject positions that cannot exist; raises ValueError."""
        if self.line < 1 or self.column < 1 or self.length < 0:
            raise ValueError(f"not a location: {self.file}:{self.line}:{self.column}+{self.length}")

    def __str__(self) -> str:
        """Return ``x.yaml:12:7``, the form that editors and terminals make clickable."""
        return f"{self.file}:{self.line}:{self.column}"
