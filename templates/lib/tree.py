"""The tree of a request: the best candidates of all draft steps, their parents, and the mask of their ancestors.

Candidates are numbered over all steps: step 0 gives 0..K-1, step i >= 1 gives K + K*K*(i-1) + c, where c // K is the
parent's place in the frontier of that step. One lane stands for one candidate.

Scores order like this: the larger first, lowest candidate on ties; NaN counts as -inf; -0.0 == 0.0.
"""

import triton
import triton.language as tl

from .best import NO_KEY, key_index, sort_key


@triton.jit
def step_of(candidate, K: tl.constexpr):
    """The draft step that made a candidate."""
    return tl.where(candidate < K, 0, 1 + (candidate - K) // (K * K))


@triton.jit
def base_of(pointer, b, STEP: tl.constexpr, K: tl.constexpr, BYTES: tl.constexpr):
    """The address, i64, of the results of step STEP for request b, less what its first candidate is offset by.

    So candidate s is at this address plus s * BYTES whichever step it is of, and addresses, unlike loads from S
    buffers, can be selected per lane: one load and its latency instead of S.
    """
    WIDTH: tl.constexpr = K if STEP == 0 else K * K
    FIRST: tl.constexpr = 0 if STEP == 0 else K + (STEP - 1) * K * K
    return pointer.to(tl.int64) + (b.to(tl.int64) * WIDTH - FIRST) * BYTES


@triton.jit
def parent_of(candidate, kept, K: tl.constexpr):
    """The candidate i32 that each grew from, -1 for the root.

    `kept` i32 is, for candidates of step 2 and later, which candidate of the step before (0..K*K-1) is at the
    parent's place in the frontier. It is clamped: a wrong one gives a wrong parent, not a wrong address.
    """
    step = step_of(candidate, K)
    later = K + (step - 2) * (K * K) + tl.minimum(tl.maximum(kept, 0), K * K - 1)
    return tl.where(step == 0, -1, tl.where(step == 1, (candidate - K) // K, later))


@triton.jit
def order(score):
    """Scores f32 -> u32 keys that compare as the scores do by the rule above; none is less than 0x007FFFFF."""
    score = tl.where(score != score, float("-inf"), score)
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def threshold(key, NEED: tl.constexpr):
    """A u32 that at least NEED of the keys reach and fewer than NEED exceed, for fewer than 65536 keys.

    Four bits a round from the top: the sixteen continuations of what is known are counted at once, two of them in a
    word, over the keys a thread has and then between warps, which is what a round waits for. It ends as soon as
    exactly NEED keys are left: if the scores differ after three or four rounds, after nine at most. The first round is
    a guess, that what is sought is a probability above 2e-9 and so known but for 28 bits.
    """
    digit = tl.arange(0, 8)
    found = tl.sum(digit, axis=0).to(tl.uint32) * 0 + 0xB1000000
    reached = found.to(tl.int32) * 0 - 1
    shift = 24
    guess = 1
    while (shift >= 0) & (reached != NEED):
        low = found + (digit.to(tl.uint32) << shift)
        high = low + (tl.full([8], 8, tl.uint32) << shift)
        pair = (key[None, :] >= low[:, None]).to(tl.int32) + tl.where(key[None, :] >= high[:, None], 65536, 0)
        pairs = tl.sum(pair, axis=1)
        lower, upper = pairs & 65535, pairs >> 16
        # Ever fewer keys reach ever higher edges, so those that enough reach come first.
        enough = tl.sum((lower >= NEED).to(tl.int32) + (upper >= NEED).to(tl.int32), axis=0)
        best = tl.minimum(tl.where(lower >= NEED, lower, 65536), tl.where(upper >= NEED, upper, 65536))
        # A guess is wrong below its first edge and from its last on; later rounds start at an edge that enough reach.
        wrong = (guess == 1) & ((enough == 0) | (enough == 16))
        found = tl.where(wrong, 0, found + ((enough - 1).to(tl.uint32) << shift))
        reached = tl.where(wrong, -1, tl.min(best, axis=0))
        shift = tl.where(wrong, 28, shift - 4)
        guess = 0
    return found


@triton.jit
def columns(key, NEED: tl.constexpr):
    """The tree columns i32 of candidates: the NEED best get 1..NEED in the order of their lanes, the others -1.

    Exactly NEED are chosen whatever the keys are, as long as lanes that are no candidates have key 0. Fewer than
    65536 lanes: two counts share a word, so that there is one scan.
    """
    edge = threshold(key, NEED)
    above = (key > edge).to(tl.int32)
    tied = (key == edge).to(tl.int32)
    free = NEED - tl.sum(above, axis=0)
    scan = tl.cumsum(above + (tied << 16), axis=0)
    ties = scan >> 16
    chosen = (above != 0) | ((tied != 0) & (ties <= free))
    return tl.where(chosen, (scan & 65535) + tl.minimum(ties, free), -1)


@triton.jit
def ranks(key, NEED: tl.constexpr):
    """The same in descending order of keys, the lower lane first on ties. Lanes are a power of 2, at most 65536."""
    LANES: tl.constexpr = key.shape[0]
    lane = tl.arange(0, LANES).to(tl.int64)
    best = LANES - 1 - (tl.sort((key.to(tl.int64) << 16) | (LANES - 1 - lane), descending=True) & (LANES - 1))
    # In the order of their lanes again, each with its rank.
    rank = (tl.sort((best << 16) | lane) & 65535).to(tl.int32)
    return tl.where(rank < NEED, rank + 1, -1)


@triton.jit
def ancestors(parent, node, N: tl.constexpr, S: tl.constexpr, COLUMNS: tl.constexpr):
    """i1[nodes, COLUMNS]: the columns that each node of the block `node` sees, itself, its ancestors and column 0.

    `parent` i32[NODES] has every node's. The walk takes S - 1 steps whatever the parents say: nodes are at most S below
    the root.
    """
    column = tl.arange(0, COLUMNS)[None, :]
    seen = (column == node[:, None]) | (column == 0)
    for _ in range(S - 1):
        inside = (node >= 0) & (node < N)
        node = tl.where(inside, tl.gather(parent, tl.where(inside, node, 0), 0), -1)
        seen = seen | (column == node[:, None])
    return seen


@triton.jit
def write_mask(
    mask_ptr,
    parent_ptr,
    b,
    start,
    seq_len,
    N: tl.constexpr,
    S: tl.constexpr,
    MODE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write the tree's own part of the mask of request b, from the parents i64[N] at `parent_ptr`.

    MODE 0, qlen: i1[B, N, N]. 1, bitpacked: u8[B, N, WIDTH]. 2, full: N rows of seq_len + N from element `start` on,
    of which the first seq_len are left alone. Tiles have 2048 elements at most. Lengths are admitted ones
    (`kv_admit`): no text is longer than a full mask has room for.
    """
    NODES: tl.constexpr = triton.next_power_of_2(N)
    COLUMNS: tl.constexpr = 8 * WIDTH if MODE == 1 else NODES
    ROWS: tl.constexpr = min(NODES, 2048 // COLUMNS)
    every = tl.arange(0, NODES)
    parent = tl.load(parent_ptr + every, mask=every < N, other=-1).to(tl.int32)
    for first in range(0, N, ROWS):
        node = first + tl.arange(0, ROWS)
        seen = ancestors(parent, node, N, S, COLUMNS)
        if MODE == 1:
            byte = tl.arange(0, WIDTH)[None, :]
            bits = tl.reshape(seen.to(tl.int32), [ROWS, WIDTH, 8]) << tl.arange(0, 8)[None, None, :]
            packed = tl.sum(bits, axis=2).to(tl.uint8)
            row_ptr = mask_ptr + b.to(tl.int64) * (N * WIDTH) + node[:, None] * WIDTH
            tl.store(row_ptr + byte, packed, mask=(node < N)[:, None] & (byte < WIDTH))
        else:
            column = tl.arange(0, COLUMNS)[None, :]
            if MODE == 0:
                row_ptr = mask_ptr + b.to(tl.int64) * (N * N) + node[:, None] * N
            else:
                row_ptr = mask_ptr + start + seq_len + node[:, None] * (seq_len + N)
            tl.store(row_ptr + column, seen, mask=(node < N)[:, None] & (column < N))


@triton.jit
def flat_start(seq_lens_ptr, b, N: tl.constexpr):
    """First element i64 of request b in a full mask: N rows of seq_len + N for each request before it.

    Admitted lengths are at most LONGEST, so it is at most b * N * (LONGEST + N): every request ends within the mask.
    """
    total = tl.zeros([128], tl.int64)
    for first in range(0, b, 128):
        earlier = first + tl.arange(0, 128)
        total += tl.load(seq_lens_ptr + earlier, mask=earlier < b, other=0)
    return (tl.sum(total, axis=0) + b.to(tl.int64) * N) * N


@triton.jit
def fill_prefix(mask_ptr, start, seq_len, program, programs, N: tl.constexpr):
    """Set the first seq_len of seq_len + N elements of the rows program, program + programs, ... of a full mask.

    Blocks start at multiples of 2048 elements, so those that lie inside a row take 16 bytes per store. Lengths are
    admitted ones, as for `write_mask`.
    """
    BLOCK: tl.constexpr = 2048
    lane = tl.arange(0, BLOCK)
    for node in range(program, N, programs):
        begin = start + node * (seq_len + N)
        end = begin + seq_len
        for block in range(begin // BLOCK, (end + BLOCK - 1) // BLOCK):
            element = block * BLOCK + lane
            if (block * BLOCK >= begin) & ((block + 1) * BLOCK <= end):
                tl.store(mask_ptr + element, tl.full([BLOCK], 1, tl.int1))
            else:
                inside = (element >= begin) & (element < end)
                tl.store(mask_ptr + element, tl.full([BLOCK], 1, tl.int1), mask=inside)


# --- ops, on what one program has in registers of a request: blocks are as rows.py says -------------------------------


@triton.jit
def tree_root(bonus):
    """The bonus token as i64."""
    return bonus.to(tl.int64)


@triton.jit
def tree_repeat(x, K: tl.constexpr):
    """T[K] of one T, or T[K, W] of a row T[W]."""
    k = tl.arange(0, triton.next_power_of_2(K))
    for _ in tl.static_range(len(x.shape)):
        k = k[:, None]
    return tl.where(k >= 0, x, x)


@triton.jit
def tree_best(candidates, K: tl.constexpr):
    """The first K of candidates T[J]."""
    k = tl.arange(0, triton.next_power_of_2(K))
    return tl.where(k < K, tl.gather(candidates, k, 0), 0)


@triton.jit
def tree_comb(rows, STEPS: tl.constexpr, N: tl.constexpr):
    """Parents and depths i64[N] of branches of STEPS nodes, one after the other, under the root; padding: -1, 0."""
    column = tl.arange(0, triton.next_power_of_2(N))
    below = (rows != 0) & (column > 0)
    depth = tl.where(below, (column - 1) % STEPS + 1, 0)
    parent = tl.where(below, tl.where(depth == 1, 0, column - 1), -1)
    return parent.to(tl.int64), depth.to(tl.int64)


@triton.jit
def tree_positions(seq_lens, depth):
    """Positions i64[N]: seq_len + depth."""
    return seq_lens + depth


@triton.jit
def best_lanes(score, K: tl.constexpr, KP: tl.constexpr):
    """The lanes i32[KP], parent * KP + child, of the K best scores f32[KP * KP] in descending order.

    The candidate id orders equal scores. Up to 64 lanes are compared pairwise, which waits for two exchanges between
    threads; more would take too many registers and are picked one by one.
    """
    lane = tl.arange(0, KP * KP)
    real = (lane // KP < K) & (lane % KP < K)
    place = tl.arange(0, KP)
    key = tl.where(real, sort_key(score, lane), NO_KEY)
    if KP * KP <= 64:
        rank = tl.sum((key[None, :] > key[:, None]).to(tl.int32), axis=1)
        found = tl.sum(tl.where(rank[None, :] == place[:, None], lane[None, :], 0), axis=1)
    else:
        found = tl.zeros([KP], tl.int32)
        for j in range(K):
            winner = tl.max(key, axis=0)
            found = tl.where(place == j, key_index(winner), found)
            key = tl.where(key == winner, NO_KEY, key)
    return tl.where(place < K, found, 0)


@triton.jit
def tree_grow(scores, p, index, K: tl.constexpr):
    """The K best of K * K candidates: tokens i64[K], path scores f32[K], ids kept i64[K], all path scores f32[K, K]."""
    KP: tl.constexpr = triton.next_power_of_2(K)
    candidates = scores[:, None] * p
    flat = tl.reshape(candidates, [KP * KP])
    lane = best_lanes(flat, K, KP)
    tokens = tl.gather(tl.reshape(index, [KP * KP]), lane, 0)
    return tokens, tl.gather(flat, lane, 0), (lane // KP * K + lane % KP).to(tl.int64), candidates


@triton.jit
def tree_gather(x, kept, K: tl.constexpr):
    """Entries kept // K of T[K]; 0 past them, for they may be flags."""
    found = tl.gather(x, tl.minimum(tl.maximum(kept // K, 0), K - 1).to(tl.int32), 0)
    return tl.where(tl.arange(0, triton.next_power_of_2(K)) < K, found, 0).to(x.dtype)


@triton.jit
def tree_gather_rows(x_ptr, kept, out_ptr, b, K: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    """Row j of T[B, K, W] at `out_ptr` becomes row kept[j] // K of T[B, K, W] at `x_ptr`, of request b.

    A chunk of all rows is loaded before any of it is stored: many loads at a time, one wait.
    """
    row = tl.arange(0, triton.next_power_of_2(K))
    base = b.to(tl.int64) * (K * W)
    source = tl.minimum(tl.maximum(kept // K, 0), K - 1) * W
    for chunk in range((W + BLOCK - 1) // BLOCK):
        w = chunk * BLOCK + tl.arange(0, BLOCK)
        inside = (row < K)[:, None] & (w < W)[None, :]
        x = tl.load(x_ptr + base + source[:, None] + w[None, :], mask=inside)
        tl.store(out_ptr + base + row[:, None] * W + w[None, :], x, mask=inside)


@triton.jit
def tree_select(
    b,
    rows,
    bonus,
    scores_ptrs,
    tokens_ptrs,
    kept_ptrs,
    scores_late,
    tokens_late,
    tokens_ptr,
    parent_ptr,
    depth_ptr,
    orphan_ptr,
    STEPS: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
):
    """Choose the N - 1 best candidates and link them to a tree of N columns, which goes to memory: `link_tree`."""
    link_tree(
        b, rows, bonus, scores_ptrs, tokens_ptrs, kept_ptrs, scores_late, tokens_late,
        tokens_ptr, parent_ptr, depth_ptr, orphan_ptr, None, STEPS, K, N,
    )  # fmt: skip


@triton.jit
def tree_select_scored(
    b,
    rows,
    bonus,
    scores_ptrs,
    tokens_ptrs,
    kept_ptrs,
    scores_late,
    tokens_late,
    tokens_ptr,
    parent_ptr,
    depth_ptr,
    orphan_ptr,
    scores_ptr,
    STEPS: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
):
    """The same best first, and the paths' scores f32[B, N - 1]."""
    link_tree(
        b, rows, bonus, scores_ptrs, tokens_ptrs, kept_ptrs, scores_late, tokens_late,
        tokens_ptr, parent_ptr, depth_ptr, orphan_ptr, scores_ptr, STEPS, K, N,
    )  # fmt: skip


@triton.jit
def link_tree(
    b, rows, bonus, scores_ptrs, tokens_ptrs, kept_ptrs, scores_late, tokens_late,
    tokens_ptr, parent_ptr, depth_ptr, orphan_ptr, best_ptr,
    STEPS: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Choose and link, by ascending id, or, if there is memory for scores at `best_ptr`, by descending score.

    Scores f32, tokens i64 and kept i64 of the steps are tuples of pointers; the last step's scores and tokens may be
    blocks [K, K] instead, None otherwise. Column j of tokens, parent, depth i64[B, N] and orphan i1[B, N] is the j-th
    kept candidate in that order, column 0 the root. Every candidate has its parent before it is known which are kept,
    so what is left then is one exchange of columns between lanes. Padding: 0, -1, 0, false, and scores 0. Best first,
    a parent whose column is behind its child's is none.
    """
    M: tl.constexpr = K + (STEPS - 1) * K * K
    LAST: tl.constexpr = K + (STEPS - 2) * K * K
    SCORES: tl.constexpr = STEPS if scores_late is None else STEPS - 1
    TOKENS: tl.constexpr = STEPS if tokens_late is None else STEPS - 1
    KP: tl.constexpr = triton.next_power_of_2(K)
    s = tl.arange(0, triton.next_power_of_2(M))
    step = step_of(s, K)
    # Addresses first, so that one load fetches what the steps' buffers hold.
    score_base = tl.zeros_like(s) + base_of(scores_ptrs[0], b, 0, K, 4)
    token_base = tl.zeros_like(s) + base_of(tokens_ptrs[0], b, 0, K, 8)
    kept_base = tl.zeros_like(token_base)
    for i in tl.static_range(1, SCORES):
        score_base = tl.where(step == i, base_of(scores_ptrs[i], b, i, K, 4), score_base)
    for i in tl.static_range(1, TOKENS):
        token_base = tl.where(step == i, base_of(tokens_ptrs[i], b, i, K, 8), token_base)
    for i in tl.static_range(2, STEPS):
        kept_base = tl.where(step == i, base_of(kept_ptrs[i - 2], b, 0, K, 8), kept_base)
    score = tl.load((score_base + s * 4).to(tl.pointer_type(tl.float32)), mask=step < SCORES, other=0.0)
    token = tl.load((token_base + s * 8).to(tl.pointer_type(tl.int64)), mask=step < TOKENS, other=0)
    place = (s - K) % (K * K) // K
    # Of kept, which is less than K * K, the low word: little endian.
    linked = (step >= 2) & (step < STEPS)
    kept = tl.load((kept_base + place * 8).to(tl.pointer_type(tl.int32)), mask=linked, other=0)
    origin = parent_of(s, kept, K)
    # The last step's, straight from the registers that they were made in.
    at = tl.maximum(s - LAST, 0) % (K * K)
    at = at // K * KP + at % K
    if scores_late is not None:
        score = tl.where(s < LAST, score, tl.gather(tl.reshape(scores_late, [KP * KP]), at, 0))
    if tokens_late is not None:
        token = tl.where(s < LAST, token, tl.gather(tl.reshape(tokens_late, [KP * KP]), at, 0))
    if best_ptr is None:
        column = columns(tl.where(s < M, order(score), 0), N - 1)
    else:
        column = ranks(tl.where(s < M, order(score), 0), N - 1)
    parent = tl.where(origin < 0, 0, tl.gather(column, tl.minimum(tl.maximum(origin, 0), M - 1), 0))
    chosen = column > 0
    live = rows != 0
    if best_ptr is not None:
        parent = tl.where(parent > column, -1, parent)
        tl.store(best_ptr + b * (N - 1) + column - 1, tl.where(live, score, 0.0), mask=chosen)
    at = b * N + tl.where(chosen, column, 0)
    tl.store(tokens_ptr + at, tl.where(live, token, 0), mask=chosen)
    tl.store(parent_ptr + at, tl.where(live, parent, -1).to(tl.int64), mask=chosen)
    tl.store(depth_ptr + at, tl.where(live, step + 1, 0).to(tl.int64), mask=chosen)
    tl.store(orphan_ptr + at, live & (parent < 0), mask=chosen)
    tl.store(tokens_ptr + b * N, tl.where(live, bonus.to(tl.int64), 0))
    tl.store(parent_ptr + b * N, -1)
    tl.store(depth_ptr + b * N, 0)
    tl.store(orphan_ptr + b * N, False)


@triton.jit
def tree_mask(
    mask_ptr,
    parent_ptr,
    seq_lens,
    seq_lens_ptr,
    b,
    N: tl.constexpr,
    LEVELS: tl.constexpr,
    MODE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The tree's own part of the mask of request b, from the parents i64[B, N]: `write_mask`."""
    start = seq_lens
    if MODE == "full":
        start = flat_start(seq_lens_ptr, b, N)
    KIND: tl.constexpr = 2 if MODE == "full" else 1 if MODE == "bitpacked" else 0
    write_mask(mask_ptr, parent_ptr + b * N, b, start, seq_lens, N, LEVELS, KIND, WIDTH)


@triton.jit
def tree_seen_slots(mask_ptr, counts_ptr, parent_ptr, slots, b, N: tl.constexpr, LEVELS: tl.constexpr):
    """The slots i32[B, N, N] of the columns that each node of request b sees, and their counts i32[B, N].

    `slots` i64[N] are those of the columns, parents i64[B, N] in memory. A node's columns go to the front of its row
    in ascending order, and 0 for each of the others behind them: so every entry is stored once. Tiles have 1024
    elements at most, half of a mask's, for places and counts take registers besides what is seen.
    """
    NODES: tl.constexpr = triton.next_power_of_2(N)
    ROWS: tl.constexpr = min(NODES, 1024 // NODES)
    column = tl.arange(0, NODES)
    parent = tl.load(parent_ptr + b * N + column, mask=column < N, other=-1).to(tl.int32)
    for first in range(0, N, ROWS):
        node = first + tl.arange(0, ROWS)
        seen = (ancestors(parent, node, N, LEVELS, NODES) & (column < N)[None, :]).to(tl.int32)
        count = tl.sum(seen, axis=1)
        before = tl.cumsum(seen, axis=1) - seen
        place = tl.where(seen != 0, before, count[:, None] + column[None, :] - before)
        row_ptr = mask_ptr + b.to(tl.int64) * (N * N) + node[:, None] * N
        inside = (node < N)[:, None] & (column < N)[None, :]
        tl.store(row_ptr + place, tl.where(seen != 0, slots[None, :], 0).to(tl.int32), mask=inside)
        tl.store(counts_ptr + b * N + node, count, mask=node < N)


@triton.jit
def tree_mask_side(mask_ptr, seq_lens_ptr, b, program, programs, N: tl.constexpr):
    """What all programs of a request share of a full mask: its rows, of which they set the prefixes."""
    start = flat_start(seq_lens_ptr, b, N)
    fill_prefix(mask_ptr, start, tl.load(seq_lens_ptr + b), program, programs, N)
