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
def sample_allow(logits, column, row, bitmask_ptr, SIZE_BITMASK: tl.constexpr):
    """Logits f32 of a row's entries `column` i32, -inf without their bit: see the op."""
    word = column >> 5
    bits = tl.load(bitmask_ptr + row.to(tl.int64) * SIZE_BITMASK + word, mask=word < SIZE_BITMASK, other=0)
    return tl.where((bits >> (column & 31)) & 1 != 0, logits, float("-inf"))


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
    exponent, t = _parts(1.0 - v)
    # Near 0 1 - v loses what v holds.
    inner = _log(exponent, tl.where(exponent == 0, -v, t))
    exponent, t = _parts(-inner)
    return -_log(exponent, t)


@triton.jit
def _parts(x):
    # A normal x > 0 as 2**exponent * (1 + t), with 1 + t from sqrt(1/2) to sqrt(2).
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    return exponent, (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0


@triton.jit
def _log(exponent, t):
    # log(2**exponent * (1 + t)) to a few units of its last place: half the instructions of one for every x. The
    # polynomial is (log(1 + t) - t + t**2 / 2) / t**3 to within 3.3e-8 of log(1 + t).
    p = tl.fma(t, 0.08711088, -0.14261581)
    p = tl.fma(p, t, 0.14908023)
    p = tl.fma(p, t, -0.16578162)
    p = tl.fma(p, t, 0.19963844)
    p = tl.fma(p, t, -0.25001326)
    p = tl.fma(p, t, 0.33333886)
    return tl.fma(exponent.to(tl.float32), 0.6931471805599453, tl.fma(t * t, tl.fma(p, t, -0.5), t))
