"""Tables of a rotated step's engine: the block that says so in a file, and the data of a preset that settles it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specc.compiler.config.block import Block

Slots = Literal["req_to_token", "block_table"]
PaddingSlot = Literal[0, -1]
Integer = Literal["int32", "int64"]
Writer = Literal["program", "engine"]


class FieldBlock(Block):
    """A carried field that lives in a table of the engine's."""

    dtype: Integer | None = None
    """The element type in the table, for a field of integers. Default: the one that the program computes with."""
    written_by: Writer = "program"
    """Who writes it from step to step: the program, or the engine, from what commit and propose hand back; then the
    program only reads it."""


class TablesBlock(Block):
    """Tables that the engine of a rotated step has, and that the program reads and writes."""

    slots: Slots = "req_to_token"
    """Where KV slots are looked up: a table with the slot of every position (req_to_token), or the table of the draft's
    blocks of page_size slots, with the number of blocks of every request (block_table)."""
    padding_slot: PaddingSlot = 0
    """Of a block table, the slot of padding rows: 0, which is no request's, or -1, where forwards of the draft write
    nothing."""
    carry: dict[str, FieldBlock] = Field(default_factory=dict[str, FieldBlock], max_length=64)
    """The carried fields that live in tables of the engine's, by name, each with its dtype there and who writes it
    (written_by). A name is of all fields that have a number behind it, too."""
