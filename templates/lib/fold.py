"""States of recurrent layers, advanced by what the nodes of an accepted path add to them."""

import triton
import triton.language as tl


@triton.constexpr_function
def number(code):
    """The type of a number: 0 is f32, 1 bf16, 2 f16."""
    return (tl.float32, tl.bfloat16, tl.float16)[code]


@triton.constexpr_function
def numbers(code):
    """The type of a pointer to such numbers."""
    return tl.pointer_type((tl.float32, tl.bfloat16, tl.float16)[code])


@triton.jit
def fold_matrix(
    place,
    row,
    copy_row,
    copy_at,
    request,
    index_ptr,
    first_node,
    length,
    tile,
    N: tl.constexpr,
    VALUES: tl.constexpr,
    KEYS: tl.constexpr,
    SHARING: tl.constexpr,
    CHANNELWISE: tl.constexpr,
    MATRIX: tl.constexpr,
    KEY: tl.constexpr,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Advance one tile of a head's matrix, ROWS value channels by COLUMNS key channels, by ``length`` nodes of a path.

    What is there behind node ``copy_at`` goes to ``copy_row`` as well; below 0 there is none. place i64[11]: address of
    the matrices and numbers from one state row to the next; then of decays f32, keys and updates f32 the address, and
    the numbers from one request to the next and from one node to the next. SHARING heads in turn have one key.
    """
    across: tl.constexpr = (KEYS + COLUMNS - 1) // COLUMNS
    down: tl.constexpr = (VALUES + ROWS - 1) // ROWS
    head = tile // (down * across)
    value = (tile // across) % down * ROWS + tl.arange(0, ROWS)
    key = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    inside = (value < VALUES)[:, None] & (key < KEYS)[None, :]
    at = (head * VALUES + value[:, None]) * KEYS + key[None, :]
    matrices = tl.multiple_of(tl.load(place).to(numbers(MATRIX)), ALIGN)
    # Rows begin at multiples of so many numbers.
    step: tl.constexpr = ALIGN // (4 if MATRIX == 0 else 2)
    apart = tl.load(place + 1)
    begin = tl.multiple_of(row * apart, step)
    copy = tl.multiple_of(copy_row * apart, step)
    decays = tl.load(place + 2).to(numbers(0)) + request * tl.load(place + 3)
    keys = tl.load(place + 5).to(numbers(KEY)) + request * tl.load(place + 6) + head // SHARING * KEYS + key
    updates = tl.load(place + 8).to(numbers(0)) + request * tl.load(place + 9) + head * VALUES + value
    to_decay = tl.load(place + 4)
    to_key = tl.load(place + 7)
    to_update = tl.load(place + 10)
    state = tl.load(matrices + begin + at, mask=inside, other=0.0).to(tl.float32)
    for i in range(length):
        node = tl.load(index_ptr + i).to(tl.int64) - first_node
        # What an index holds beyond the nodes of a request is none of them.
        node = tl.minimum(tl.maximum(node, 0), N - 1)
        if CHANNELWISE:
            decay = tl.load(decays + node * to_decay + head * KEYS + key, mask=key < KEYS, other=0.0)
            state = state * decay[None, :]
        else:
            state = state * tl.load(decays + node * to_decay + head)
        added = tl.load(keys + node * to_key, mask=key < KEYS, other=0.0).to(tl.float32)
        update = tl.load(updates + node * to_update, mask=value < VALUES, other=0.0)
        state = state + update[:, None] * added[None, :]
        copied = inside & (i == copy_at) & (copy_row >= 0)
        tl.store(matrices + copy + at, state.to(number(MATRIX)), mask=copied)
    tl.store(matrices + begin + at, state.to(number(MATRIX)), mask=inside)


@triton.jit
def shift_window(
    place,
    row,
    copy_row,
    copy_at,
    request,
    index_ptr,
    first_node,
    length,
    tile,
    N: tl.constexpr,
    CHANNELS: tl.constexpr,
    INPUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move the last inputs of BLOCK channels on by ``length`` nodes of a path, as `fold_matrix` does matrices.

    place i64[6]: address of the windows and numbers from one state row to the next; of inputs the address, and the
    numbers from one request to the next and from one node to the next; and the numbers of a window.
    """
    channel = tile * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    width = tl.load(place + 5)
    windows = tl.load(place).to(numbers(INPUT)) + channel * width
    apart = tl.load(place + 1)
    inputs = tl.load(place + 2).to(numbers(INPUT)) + request * tl.load(place + 3) + channel
    to_input = tl.load(place + 4)
    # The copy reads what the window itself is moved over.
    for copy in range(2):
        copying = (copy == 0) & (copy_row >= 0) & (copy_at >= 0)
        moving = inside & ((copy == 1) | copying)
        target = tl.where(copy == 0, copy_row, row)
        count = tl.where(copy == 0, copy_at + 1, length)
        for w in range(width):
            # Inputs of a window lie in ascending order, so what is read here has not been written yet.
            old = w + count < width
            kept = tl.load(windows + row * apart + w + count, mask=moving & old, other=0.0)
            new = moving & (old == 0)
            node = tl.load(index_ptr + w + count - width, mask=old == 0, other=0).to(tl.int64) - first_node
            node = tl.minimum(tl.maximum(node, 0), N - 1)
            added = tl.load(inputs + node * to_input, mask=new, other=0.0)
            tl.debug_barrier()
            tl.store(windows + target * apart + w, tl.where(old, kept, added), mask=moving)
