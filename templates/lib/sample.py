"""Noise that makes the largest logit a token drawn from the softmax; the `sample` ops.

An entry's noise is a function of the row's key and the entry alone, so what is drawn does not depend on how a row is
cut. A uniform v in (0, 1) has 32 bits and is fine next to 0, where -log(1 - v) decides which of the unlikely tokens
is drawn.
"""

import triton
import triton.language as tl

LEAST = tl.constexpr(1e-6)
"""Temperatures below are 0."""
BELOW_ONE = tl.constexpr(1 - 2**-24)
"""The largest f32 below 1."""


@triton.jit
def sample_keys(seed, temperature, positions, OFFSET: tl.constexpr, KIND: tl.constexpr):
    """Keys i64 and scales f32 of rows at positions i64, a block or a scalar: see the op."""
    position = positions + OFFSET
    low = position.to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    a, b, _, _ = tl.philox(seed, low, high, low * 0 + KIND, low * 0)
    scale = tl.where(temperature >= LEAST, 1.0 / tl.maximum(temperature, LEAST), 0.0)
    return (b.to(tl.int64) << 32) | a.to(tl.int64), tl.where(position == position, scale, 0.0)


@triton.jit
def sample_perturb(logits, column, row, keys_ptr, scales_ptr, cuts_ptr):
    """Logits f32 of a row's entries `column` i32 with their noise: see the op."""
    key = tl.load(keys_ptr + row)
    scale = tl.load(scales_ptr + row)
    noisy = logits * scale + gumbel(uniform_bits(column, key))
    if cuts_ptr is not None:
        noisy = tl.where(logits < tl.load(cuts_ptr + row), float("-inf"), noisy)
    return tl.where(scale > 0.0, noisy, logits)


@triton.jit
def uniform_bits(column, key):
    """Philox2x32-7 of the counter (column, upper half of the key) with the lower half as its key: a word u32."""
    x = column.to(tl.uint32)
    y = x * 0 + (key >> 32).to(tl.uint32)
    k = key.to(tl.uint32)
    for _ in tl.static_range(7):
        low = tl.mul(x, 0xD256D193, sanitize_overflow=False)
        x = tl.umulhi(x, x * 0 + 0xD256D193) ^ k ^ y
        y = low
        k = tl.add(k, 0x9E3779B9, sanitize_overflow=False)
    return x


@triton.jit
def gumbel(bits):
    """-log(-log(1 - v)) f32 with v uniform in (0, 1), from words u32."""
    v = tl.minimum((bits.to(tl.float32) + 0.5) * 2.0**-32, BELOW_ONE)
    # Near 0 1 - v loses what v holds: there the series, right to 2e-7.
    series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * 0.25)))
    return -tl.log(tl.where(v < 0.03125, series, -tl.log(1.0 - v)))
