"""What a request may be sampled with: the parameters, as the compiler and the runtime know them."""

from __future__ import annotations

PREFIX = "sampling_"
"""What the names of the carried fields begin with, each of which holds one parameter."""
SEEDS = (1 << 63) - 1
"""Seeds are below."""
HOTTEST = 1 << 20
"""The highest temperature: at it every token is as likely as any other, to within the rounding of logits."""
MOST_KEPT = 1 << 30
"""Numbers of tokens to draw from are below."""
PARAMETERS: dict[str, tuple[str, int]] = {
    "seed": ("i64", SEEDS),
    "temperature": ("f32", HOTTEST),
    "top_k": ("i32", MOST_KEPT),
    "top_p": ("f32", 1),
    "min_p": ("f32", 1),
}
"""By name the dtype and the limit of the field: integers are from 0 and less than it, other numbers from 0 to it."""
