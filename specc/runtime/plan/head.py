"""What a program that computes the head of its draft's vocabulary is called by. Imports nothing."""

from __future__ import annotations

PART_AXIS = "G"
"""The axis of the records of parts of the vocabulary. It comes first, as that of all ranks' records does."""
HEAD = "draft_head"
"""The table of the head as the engine has it, T[rows, W]; the engine brings it."""
WEIGHT, SCALE = "head_weight", "head_scale"
"""The tables that the program reads, which the runtime makes: the weights [Vd, W] of the entries that are scored, and
f32[Vd], what one of 8 bits is worth."""
