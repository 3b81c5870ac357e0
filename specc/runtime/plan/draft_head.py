"""Names of what a program has that computes the head of its draft's vocabulary. Imports nothing."""

PART_AXIS, ENTRIES = "G", "H"
"""The axes of parts of the vocabulary, which is the first one of their records, and of the engine's head."""
HEAD, WEIGHT, SCALE = "draft_head", "head_weight", "head_scale"
"""The engine's head T[H, W], and what the runtime makes of it: weights [Vd, W], f32[Vd] what one of 8 bits is worth."""
