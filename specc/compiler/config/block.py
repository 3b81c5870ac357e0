"""The base of every block of keys, and the block of a recurrent state's sizes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

StateKind = Literal["GDN", "KDA", "Mamba-2"]
MOST = 1 << 16
"""The largest size of a state that a program advances."""
Size = Annotated[int, Field(strict=True, ge=1, le=MOST)]


class Block(BaseModel):
    """A block of keys: no key but the listed ones, no coercion, no change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class StateBlock(Block):
    """Sizes of the recurrent state of a request in one layer, on all ranks together. All but dtype are needed."""

    kind: StateKind | None = None
    """The rule by which every token changes it: a gated delta rule (GDN), one with a decay for each key channel (KDA),
    or a selective state space (Mamba-2)."""
    heads: Size | None = None
    """Matrices."""
    rows: Size | None = None
    """Value channels of a matrix; of Mamba-2 those of a head."""
    columns: Size | None = None
    """Key channels of a matrix; of Mamba-2 the state's."""
    groups: Size | None = None
    """Heads of keys, which equally many matrices share; of Mamba-2 groups."""
    kernel: Annotated[int, Field(strict=True, ge=2, le=64)] | None = None
    """Taps of the convolution."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Element type of the matrices."""
    keys: Literal["bfloat16", "float16", "float32"] = "float32"
    """Element type of the keys that a verification leaves."""
