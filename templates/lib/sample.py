"""Noise that makes the largest logit a token drawn from the softmax, and the keys of it.

Noise is a function of the row's key and a counter alone, so what is drawn does not depend on how a row is cut. A
uniform v in (0, 1) has 32 bits and is fine next to 0, where -log(1 - v) decides which of the unlikely is drawn.
"""

import triton
import triton.language as tl

LEAST = tl.constexpr(1e-6)
"""Temperatures below are 0."""
LEAST_REPETITION = tl.constexpr(2.0**-10)
"""Repetition penalties below divide as if they were this one."""
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
def uniform_bits(counter, key):
    """Philox2x32-7 of (counter, upper half of the key) with the lower half as its key: a word u32."""
    x = counter.to(tl.uint32)
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
    return -log_of(-inner)


@triton.jit
def log_of(x):
    """log(x) f32 of normal x > 0, to a few units of its last place; anything for other x."""
    exponent, t = _parts(x)
    return _log(exponent, t)


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


@triton.jit
def sample_penalize(
    logits,
    column,
    row,
    counts_ptr,
    counts_rows_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    ROWS: tl.constexpr,
    SIZE_COUNTS: tl.constexpr,
):
    """Logits f32 of a row's entries `column` i32 less what tokens of its text cost: see the op."""
    b = row // ROWS
    repetition = tl.load(repetition_ptr + b)
    frequency = tl.load(frequency_ptr + b)
    presence = tl.load(presence_ptr + b)
    counts = counts_of(b, column, counts_ptr, counts_rows_ptr, repetition, frequency, presence, SIZE_COUNTS)
    return penalized(logits, counts, repetition, frequency, presence)


@triton.jit
def sample_penalize_nodes(
    logits,
    column,
    row,
    counts_ptr,
    counts_rows_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    tokens_ptr,
    parent_ptr,
    ROWS: tl.constexpr,
    A: tl.constexpr,
    SIZE_COUNTS: tl.constexpr,
):
    """The same of the row after a node, with the tokens i64[ROWS] of the path that leads to it, the root's excluded.

    Without `parent_ptr` node c + 1 is the child of node c. Whatever parents hold: A - 1 levels and nodes below ROWS.
    """
    b = row // ROWS
    repetition = tl.load(repetition_ptr + b)
    frequency = tl.load(frequency_ptr + b)
    presence = tl.load(presence_ptr + b)
    counts = counts_of(b, column, counts_ptr, counts_rows_ptr, repetition, frequency, presence, SIZE_COUNTS)
    first = b * ROWS
    node = (row % ROWS).to(tl.int64)
    for _ in tl.static_range(A - 1):
        real = (node > 0) & (node < ROWS)
        token = tl.load(tokens_ptr + first + node, mask=real, other=-1)
        # No token of a vocabulary is beyond 31 bits.
        counts += tl.where(column == tl.where(token >> 31 == 0, token, -1).to(tl.int32), 2, 0)
        if parent_ptr is None:
            node -= 1
        else:
            node = tl.load(parent_ptr + first + node, mask=real, other=0)
    return penalized(logits, counts, repetition, frequency, presence)


@triton.jit
def counts_of(b, column, counts_ptr, rows_ptr, repetition, frequency, presence, V: tl.constexpr):
    """The words i32 of entries of the vocabulary in i32[*, V]; without a penalty nothing is read, and they are 0."""
    counted = (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)
    return of_request(b, column, counts_ptr, rows_ptr, counted, V)


@triton.jit
def of_request(b, column, table_ptr, rows_ptr, wanted, V: tl.constexpr):
    """Entries `column` of T[*, V] that request b has in the pool, if there are rows of it, else in a value T[B, V].

    0 where they are not wanted, and of a padding row of the pool, as what is loaded from there.
    """
    row = b.to(tl.int64)
    if rows_ptr is not None:
        row = tl.load(rows_ptr + b)
        wanted = wanted & (row != 0)
    return tl.load(table_ptr + row * V + column, mask=column * 0 + wanted > 0, other=0)


@triton.jit
def penalized(logits, counts, repetition, frequency, presence):
    """Logits f32 of tokens with their counts i32: one operation after the other, as the op says."""
    times = counts >> 1
    x = logits - frequency * times.to(tl.float32)
    x = x - tl.where(times > 0, presence, 0.0)
    inverse = tl.div_rn(1.0, tl.where(repetition < LEAST_REPETITION, LEAST_REPETITION, repetition))
    scaled = x * tl.where(x > 0.0, inverse, repetition)
    return tl.where(counts > 0, scaled, x)


@triton.jit
def sample_bias(logits, column, row, bias_ptr, bias_rows_ptr, ROWS: tl.constexpr, SIZE_BIAS: tl.constexpr):
    """Logits f32 of a row's entries `column` i32 plus the request's bias of them: see the op."""
    return logits + of_request(row // ROWS, column, bias_ptr, bias_rows_ptr, row >= 0, SIZE_BIAS)
