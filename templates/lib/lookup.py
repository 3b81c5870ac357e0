"""Drafts looked up in a text: the earlier places that it ended like it does now, and what followed them.

A source has `count` tokens i32: the text of a request, a ring of WINDOW entries with the oldest token at entry `oldest`
and the last one at `newest`, or a corpus, where `oldest` is 0. Place i of a source is its i-th token, oldest first. Its
length is how many of the tokens up to it are those that the text ends with.

A place's key is an i64: length and source in the upper half, its number in the lower. So one integer maximum gives
the longest match, in the text before the corpus, the latest, and no two are equal. NO_PLACE is less than any.
"""

import triton
import triton.language as tl

from .argmax import arrived

NO_PLACE: tl.constexpr = tl.constexpr(-1)


@triton.jit
def wrapped(entry, size):
    """Entries of a ring, given less than `size` past either end of it."""
    entry = tl.where(entry < 0, entry + size, entry)
    return tl.where(entry >= size, entry - size, entry)


@triton.jit
def entry_of(oldest, place, OF_TEXT: tl.constexpr, WINDOW: tl.constexpr):
    """Where a source has its places."""
    return wrapped(oldest + place, WINDOW) if OF_TEXT else place


@triton.jit
def lengths(source_ptr, oldest, place, alive, text_ptr, newest, limit, OF_TEXT: tl.constexpr, WINDOW: tl.constexpr):
    """How many tokens up to each place are the last ones of the text, at most `limit`.

    `alive` says which places have the very last one. Nobody asks whether a token further back is there at all: a ring
    has an entry for it, a corpus its first one, and what they add is cut off, as a place's number limits its length.
    """
    length = alive.to(tl.int32)
    entry = entry_of(oldest, place, OF_TEXT, WINDOW)
    some = tl.max(length, axis=0)
    back = 1
    # Two tokens at once: their loads do not wait for each other, and few of them are in vain.
    while (some != 0) & (back < limit):
        seen = alive
        for _ in tl.static_range(2):
            entry = tl.where(entry == 0, WINDOW if OF_TEXT else 1, entry) - 1
            last = tl.load(text_ptr + wrapped(newest - back, WINDOW), mask=back < limit, other=0)
            token = tl.load(source_ptr + entry, mask=seen & (back < limit), other=0)
            alive = alive & (back < limit) & (token == last)
            length += alive.to(tl.int32)
            back += 1
        some = tl.max(alive.to(tl.int32), axis=0)
    return tl.minimum(length, place + 1)


@triton.jit
def best_places(rank, token, K: tl.constexpr):
    """The K best of some places with different tokens to follow: rank [KP] in descending order, token i32[KP].

    KP is K rounded up to a power of 2; where there are no more places the rank is NO_PLACE. Ranks may be keys. Both
    operands are blocks of one shape. The best of several such lists are the best of all their places: a place that its
    own list lacks has a better one with the same token in there, or K better ones with other tokens.
    """
    branch = tl.arange(0, triton.next_power_of_2(K))
    best = tl.full([triton.next_power_of_2(K)], NO_PLACE, rank.dtype)
    begins = tl.zeros([triton.next_power_of_2(K)], tl.int32)
    for j in range(K):
        winner = tl.max(rank)
        begin = tl.max(tl.where(rank == winner, token, -2147483648))
        best = tl.where(branch == j, winner, best)
        begins = tl.where(branch == j, begin, begins)
        rank = tl.where(token == begin, NO_PLACE, rank)
    return best, begins


@triton.jit
def no_places(K: tl.constexpr):
    """The empty list of places, as `best_places` gives it."""
    KP: tl.constexpr = triton.next_power_of_2(K)
    return tl.full([KP], NO_PLACE, tl.int64), tl.zeros([KP], tl.int32)


@triton.jit
def keys(rank, first, OF_TEXT: tl.constexpr, BLOCK: tl.constexpr):
    """The keys i64 of places of a tile that starts at place `first`; their rank is length * BLOCK + lane."""
    upper = (2 * (rank // BLOCK) + OF_TEXT).to(tl.int64)
    return tl.where(rank < 0, NO_PLACE, (upper << 32) + (first + rank % BLOCK))


@triton.jit
def search(
    best,
    begins,
    source_ptr,
    oldest,
    count,
    program,
    programs,
    text_ptr,
    newest,
    limit,
    OF_TEXT: tl.constexpr,
    K: tl.constexpr,
    WINDOW: tl.constexpr,
    SHORTEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best of a list of places and of one program's share of a source, in tiles of BLOCK places.

    At most `limit` tokens are compared, and at least SHORTEST of them must be equal. Later places come first: then few
    tiles have one that is better than those listed.
    """
    lane = tl.arange(0, BLOCK)
    listed = tl.arange(0, triton.next_power_of_2(K)) < K
    # The last token is no place: nothing follows it. So only the tile of the latest places may be smaller.
    tiles = tl.maximum(count + (BLOCK - 2), 0) // BLOCK
    first = (tiles - 1 - program) * BLOCK
    inside = (first >= 0) & (first + lane < count - 1)
    last = tl.load(text_ptr + newest, mask=tiles > 0, other=0)
    ahead = tl.load(source_ptr + entry_of(oldest, first + lane, OF_TEXT, WINDOW), mask=inside, other=0)
    for _ in range(program, tiles, programs):
        place = first + lane
        alive = inside & (ahead == last)
        # The next tile is loaded while this one is looked at.
        inside = (first - programs * BLOCK + lane) >= 0
        further = entry_of(oldest, place - programs * BLOCK, OF_TEXT, WINDOW)
        ahead = tl.load(source_ptr + further, mask=inside, other=0)
        if tl.max(alive.to(tl.int32), axis=0) != 0:
            length = lengths(source_ptr, oldest, place, alive, text_ptr, newest, limit, OF_TEXT, WINDOW)
            rank = tl.where(length >= SHORTEST, length * BLOCK + lane, NO_PLACE)
            worst = tl.min(tl.where(listed, best, 9223372036854775807), axis=0)
            if keys(tl.max(rank, axis=0), first, OF_TEXT, BLOCK) > worst:
                following = entry_of(oldest, place + 1, OF_TEXT, WINDOW)
                token = tl.load(source_ptr + following, mask=rank >= 0, other=0)
                others, other_begins = best_places(rank, token, K)
                others = keys(others, first, OF_TEXT, BLOCK)
                best, begins = best_places(tl.join(best, others), tl.join(begins, other_begins), K)
        first -= programs * BLOCK
    return best, begins


@triton.jit
def leave(best, begins, key_ptr, token_ptr, slot, arrivals_ptr, expected, K: tl.constexpr):
    """Store the list of a program, K entries from `slot` on, and arrive; true in the last program, see `arrived`.

    K is no more than the lanes of a warp.
    """
    k = tl.arange(0, triton.next_power_of_2(K))
    tl.store(key_ptr + slot + k, best, mask=k < K)
    tl.store(token_ptr + slot + k, begins, mask=k < K)
    return arrived(arrivals_ptr, expected)


@triton.jit
def best_of_programs(key_ptr, token_ptr, slot, programs, K: tl.constexpr, SPLITS: tl.constexpr):
    """The keys of the best of all lists, the first of which is at `slot`. Only after `leave` gave true."""
    program = tl.arange(0, SPLITS)[:, None]
    k = tl.arange(0, triton.next_power_of_2(K))[None, :]
    present = (program < programs) & (k < K)
    at = slot + program * K + k
    key = tl.load(key_ptr + at, mask=present, other=NO_PLACE, cache_modifier=".cg")
    token = tl.load(token_ptr + at, mask=present, other=0, cache_modifier=".cg")
    best, _ = best_places(key, token, K)
    return best


@triton.jit
def follower(key, i, count, S: tl.constexpr):
    """(Whether a place is one of the text, the number i32 of the token that a branch from there has at step i < S).

    A text of `count` tokens goes on as the drafts themselves do: with the tokens after the place once more.
    """
    of_text = ((key >> 32) & 1) != 0
    place = key.to(tl.int32)
    period = tl.where(of_text & (key >= 0), count - 1 - place, S)
    return of_text, place + 1 + i % period


@triton.jit
def write_links(b, live, seq_len, parent_ptr, positions_ptr, S: tl.constexpr, N: tl.constexpr):
    """Parents and positions i64[B, N] of request b: branches of S nodes each, one after the other, under the root.

    All nodes of a padding row, which is not `live`, are roots.
    """
    column = tl.arange(0, triton.next_power_of_2(N))
    below = live & (column > 0)
    depth = tl.where(below, (column - 1) % S + 1, 0)
    parent = tl.where(below, tl.where(depth == 1, 0, column - 1), -1)
    tl.store(parent_ptr + b * N + column, parent.to(tl.int64), mask=column < N)
    tl.store(positions_ptr + b * N + column, seq_len + depth, mask=column < N)
