"""Tables by which a program copies the states of its target's recurrent layers. Imports the standard library only."""

from __future__ import annotations

from ..plan import kv_pointers

OWNER = "target"
"""Whose states programs commit."""
STATE_ROWS, KEPT_ROWS, KEPT_INTERVAL = "state_rows", "kept_rows", "kept_interval"
"""Tables of the engine's: i32[P] the state row of each pool row, i32[P] where its state goes where its text comes to a
multiple of some tokens, and i64[1] how many these are."""
STATE_PARTS = 4
"""The most tensors that the state of a layer is in: three windows and a matrix (KDA)."""
PART_WORDS = 8
"""Numbers that say where one of them is, see `StatePools`."""
STATES = f"{OWNER}.state"
"""How those tensors are called among the buffers that kernels touch."""
STATE_POINTERS = kv_pointers(STATES)
"""The arena buffer i64[layers * STATE_PARTS, PART_WORDS] that says where they are."""
