"""Names of what a program has of the vocabulary of its draft, whose head it may compute. Imports nothing."""

PART_AXIS, ENTRIES, BIAS_ENTRIES = "Vp", "H", "M"
"""The axes of parts of the vocabulary, which is the first one of their records, and of the engine's heads."""
HEAD, WEIGHT, SCALE = "draft_head", "head_weight", "head_scale"
BIAS, BIAS_WEIGHT, BIAS_SCALE = "markov_w2", "markov_weight", "markov_scale"
"""The engine's head T[H, W] or table T[M, r]; what is made of it: weights [Vd, W], f32[Vd] what 8 bits are worth."""
TOKEN_ENTRIES = "d2t_entries"  # i32[V]: the entry of each token among those that a draft scores, or -1; inverse of d2t
MADE_OF = {WEIGHT: (HEAD, SCALE), BIAS_WEIGHT: (BIAS, BIAS_SCALE)}
MADE = frozenset({*MADE_OF, SCALE, BIAS_SCALE, TOKEN_ENTRIES})
"""The tables that the runtime makes of the engine's when a program is bound. Kernels read them as dense memory."""
