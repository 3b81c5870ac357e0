"""Names of what a program has of the vocabulary of its draft, whose head it may compute. Imports nothing."""

PART_AXIS, ENTRIES = "G", "H"
"""The axes of parts of the vocabulary, which is the first one of their records, and of the engine's head."""
HEAD, WEIGHT, SCALE = "draft_head", "head_weight", "head_scale"
"""The engine's head T[H, W], and what the runtime makes of it: weights [Vd, W], f32[Vd] what one of 8 bits is worth."""
TOKEN_ENTRIES = "d2t_entries"
"""The entry i32[V] of each token among those that a draft scores, -1 of others: the inverse of the table `d2t`."""
MADE = frozenset({WEIGHT, SCALE, TOKEN_ENTRIES})
"""The tables that the runtime makes of the engine's when a program is bound. Kernels read them as dense memory."""
