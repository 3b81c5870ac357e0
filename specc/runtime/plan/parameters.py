"""What a request may be sampled with: the parameters, as the compiler and the runtime know them."""

from __future__ import annotations

PREFIX = "sampling_"
"""What the names of the carried fields begin with, each of which holds one parameter."""
SEEDS = (1 << 63) - 1
"""Seeds are below."""
LEAST_TEMPERATURE = 1e-6
"""Temperatures below are 0, which is greedy."""
HOTTEST = 1 << 20
"""The highest temperature: at it every token is as likely as any other, to within the rounding of logits."""
MOST_KEPT = 1 << 30
"""Numbers of tokens to draw from are below."""
MOST_REPETITION = 1 << 10
"""The highest repetition penalty; the lowest is its reciprocal."""
MOST_PENALTY = 2
"""The size of the largest frequency and presence penalty."""
MOST_BIAS = 100
"""The size of the largest bias of a token."""
PARAMETERS: dict[str, tuple[str, int]] = {
    "seed": ("i64", SEEDS),
    "temperature": ("f32", HOTTEST),
    "top_k": ("i32", MOST_KEPT),
    "top_p": ("f32", 1),
    "min_p": ("f32", 1),
    "repetition_penalty": ("f32", MOST_REPETITION),
    "frequency_penalty": ("f32", -MOST_PENALTY),
    "presence_penalty": ("f32", -MOST_PENALTY),
}
"""By name the dtype and the limit of the field: integers are from 0 and less than it, other numbers from 0 to it, or,
where it is negative, from it to its opposite."""
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
"""The parameters that ``penalties`` stands for."""
COUNTS = "counts"
"""The field of what the text of a request has, see `sample.penalize`."""
LOGIT_BIAS = "logit_bias"
"""The parameter that is a number for some tokens, and the field that has one for every token."""
TOKENWISE: dict[str, tuple[str, int]] = {COUNTS: ("i32", 1 << 31), LOGIT_BIAS: ("f32", -MOST_BIAS)}
"""The same of fields that have a row of the vocabulary's length."""
