"""Names of what a program has of the vocabulary of its draft, whose head it may compute. Imports nothing."""

PART_AXIS, ENTRIES = "G", "H"
"""The axes of parts of the vocabulary, which is the first one of their records, and of the engine's head."""
HEAD, WEIGHT, SCALE = "draft_head", "head_weight", "head_scale"
"""The engine's head T[H, W], and what the runtime makes of it: weights [Vd, W], f32[Vd] what one of 8 bits is worth."""
BIAS, BIAS_WEIGHT, BIAS_SCALE = "markov_w2", "markov_weight", "markov_scale"
"""The same of a Markov head's table [M, r] that scores, where the program computes the head."""
BIAS_ENTRIES = "M"
"""Its axis of entries: an engine may have more of them than of the head, or fewer."""
TOKEN_ENTRIES = "d2t_entries"
"""The entry i32[V] of each token among those that a draft scores, -1 of others: the inverse of the table `d2t`."""
OF = {WEIGHT: (HEAD, SCALE), BIAS_WEIGHT: (BIAS, BIAS_SCALE)}
"""The engine's table that weights are made of, and their scale."""
MADE = frozenset({*OF, SCALE, BIAS_SCALE, TOKEN_ENTRIES})
"""The tables that the runtime makes of the engine's when a program is bound. Kernels read them as dense memory."""
