"""ngram_start and ngram_propose against the reference ops, and against a plain search through the whole text."""

import pytest
import torch
from cluster_cases import integer
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import generator, poison, quick, random_rows
from kernel_launcher import Launcher
from ngram_cases import (
    PLAIN,
    POOL,
    Case,
    check,
    completed,
    look_up,
    propose,
    random_lengths,
    random_text,
    ring,
    shapes,
    start,
)

from specc.runtime.semantics.reference import OPS


@pytest.mark.parametrize("beyond", ["period", "last"])
@quick
@given(shape=shapes)
def test_random_texts(launcher: Launcher, beyond: str, shape: Case) -> None:
    """Requests of all lengths, some of them padding, with and without a corpus, as chains and as trees."""
    shape = shape | {"beyond": beyond}
    source = generator(shape["seed"])
    rows = random_rows(source, shape["batch"], POOL).tolist()
    lens = [n if row else 0 for n, row in zip(random_lengths(source, shape), rows, strict=True)]
    texts = [random_text(source, n + 1, shape["alphabet"]) for n in lens]
    corpus = shape["corpus"]
    if corpus is not None:
        corpus = [token - (integer(source, 0, 4) == 0) for token in random_text(source, corpus, shape["alphabet"])]
    propose(launcher, shape, rows, texts, corpus)


@pytest.mark.parametrize("length", [*range(9), 14, 15, 16, 17, 31, 32, 33])
def test_every_length_around_the_ring(launcher: Launcher, length: int) -> None:
    """A text of period three: the longest match and the latest place with it, whose drafts go on into themselves."""
    text = [5, 7, 9] * 13
    tokens = propose(launcher, PLAIN | {"steps": 5}, [3], [text[: length + 1]])
    if length >= 3:
        assert tokens.tolist() == [text[length : length + 6]]


@pytest.mark.parametrize("before", range(18))
def test_a_match_across_the_seam_of_the_ring(launcher: Launcher, before: int) -> None:
    """Three equal tokens, and two at a later place, wherever the ring's last entry lies among them."""
    text = [6, 7] * (before // 2) + [6] * (before % 2) + [1, 2, 3, 4, 0, 2, 3, 5, 1, 2, 3]
    for scans in (1, 3):
        tokens = propose(launcher, PLAIN | {"window": 13, "block": 4, "scans": scans, "steps": 2}, [3], [text])
        assert tokens.tolist() == [[3, 4, 0]]


def test_longer_matches_come_first_then_the_text_then_later_places(launcher: Launcher) -> None:
    shape = PLAIN | {"k": 4, "steps": 2, "mode": "qlen", "window": 64, "block": 4, "scans": 3}
    text = [1, 2, 10, 0, 2, 11, 0, 3, 2, 12, 0, 1, 2]
    corpus = [9, 1, 2, 20, 21, 8, 2, 22, 23, 0, 1, 2, 30, -1, 0]
    tokens = propose(launcher, shape, [1], [text], corpus)
    assert tokens.tolist() == [[2, 30, 0, 10, 0, 20, 21, 12, 0]]


def test_branches_begin_with_different_tokens(launcher: Launcher) -> None:
    """Many places before one token, found by every program, and few before others."""
    shape = PLAIN | {"k": 4, "steps": 1, "window": 64, "block": 4, "mode": "none"}
    text = [1, 4, 1, 5, *[1, 3] * 20, 1]
    for scans in range(1, 8):
        assert propose(launcher, shape | {"scans": scans}, [2], [text]).tolist() == [[1, 3, 5, 4, 0]]


def test_a_tree_that_ends_within_a_branch(launcher: Launcher) -> None:
    shape = PLAIN | {"k": 4, "steps": 3, "window": 64}
    text = [1, 4, 6, 6, 1, 5, 7, 7, 1, 3, 8, 8, 1]
    for cut, mode in ((1, "qlen"), (2, "slots"), (4, "bitpacked"), (7, "full"), (8, "none"), (11, "qlen")):
        tokens = propose(launcher, shape | {"cut": cut, "mode": mode}, [2], [text])
        assert tokens.tolist() == [[1, 3, 8, 8, 5, 7, 7, 4, 6, 6, 0, 0, 0][: 13 - cut]]


def test_the_ends_of_a_corpus(launcher: Launcher) -> None:
    """Nothing follows its last token, drafts past it are 0, and its tokens below 0 match nothing but are followed."""
    shape = PLAIN | {"steps": 4}
    for corpus, tokens in (
        ([], [0, 0, 0, 0]),
        ([8], [0, 0, 0, 0]),
        ([8, 6], [6, 0, 0, 0]),
        ([1, 8, 6, 8], [6, 8, 0, 0]),
        ([5, 8, -1, 3, 8], [0, 3, 8, 0]),
        ([8, -1, -1, 8], [0, 0, 8, 0]),
    ):
        assert propose(launcher, shape, [4], [[2, 8]], corpus).tolist() == [[8, *tokens]]


def test_a_text_of_one_token_is_looked_up_in_the_corpus(launcher: Launcher) -> None:
    """It has no place of its own, and no second token to compare, not even with entries that nobody has set."""
    shape = PLAIN | {"k": 2, "steps": 2, "mode": "qlen"}
    assert propose(launcher, shape, [4], [[7]], [0, 7, 3, 1, 7, 5, 6]).tolist() == [[7, 5, 6, 3, 1]]


def test_text_and_corpus_compared(launcher: Launcher) -> None:
    """A longer match wins, wherever it is; of equally long ones, by as many as are compared, the text's."""
    shape = PLAIN | {"steps": 1, "longest": 2}
    assert propose(launcher, shape, [1], [[0, 0, 0, 0, 2, 6, 1, 2]], [1, 2, 7]).tolist() == [[2, 7]]
    assert propose(launcher, shape, [1], [[1, 2, 3, 1, 2]], [3, 1, 2, 7]).tolist() == [[2, 3]]


def test_too_short_matches_do_not_count(launcher: Launcher) -> None:
    text = [1, 2, 3, 9, 0, 2, 3, 8, 1, 2, 3]
    for shortest, begin in ((1, 9), (3, 9), (4, 0)):
        tokens = propose(launcher, PLAIN | {"shortest": shortest, "longest": 4}, [1], [text])
        assert tokens[0, 1] == begin
    # Of equally long matches, by what is compared, the later one counts.
    assert propose(launcher, PLAIN | {"longest": 2}, [1], [text])[0, 1] == 8


@pytest.mark.parametrize("length", range(1, 20))
def test_the_last_token_stands_for_what_is_not_there(launcher: Launcher, length: int) -> None:
    """Where the text ends behind a place, at every place of a ring, and where nothing matches; not where it goes on."""
    text = [*range(10, 10 + length), 5, 6, 5]
    shape = PLAIN | {"beyond": "last", "steps": 4, "block": 4, "scans": 2}
    assert propose(launcher, shape, [1], [text]).tolist() == [[5, 6, 5, 5, 5]]
    assert propose(launcher, shape, [1], [text[:-1]]).tolist() == [[6, 6, 6, 6, 6]]
    assert propose(launcher, shape, [1], [[9, 8, 7, 6, 5, 9]]).tolist() == [[9, 8, 7, 6, 5]]


def test_the_last_token_stands_for_what_a_corpus_lacks(launcher: Launcher) -> None:
    """Past its end, for tokens below 0 and for branches without a place."""
    shape = PLAIN | {"beyond": "last", "steps": 3, "k": 2, "mode": "qlen"}
    tokens = propose(launcher, shape, [4], [[2, 8]], [8, -1, 3, 1, 8, 6])
    assert tokens.tolist() == [[8, 6, 8, 8, 8, 3, 1]]
    assert propose(launcher, shape, [4], [[2, 8]], [8, 6]).tolist() == [[8, 6, 8, 8, 8, 8, 8]]


@pytest.mark.parametrize("window", [8, 13])
def test_tokens_that_have_left_the_ring_are_neither_matched_nor_drafted(launcher: Launcher, window: int) -> None:
    text = [1, 2, 3, 4, 5, 6, *([0] * (window - 2)), 4, 5]
    tokens = propose(launcher, PLAIN | {"window": window}, [1], [text])
    assert tokens.tolist() == [[5, 0, 0, 0]]


def test_padding_rows_of_any_length(launcher: Launcher) -> None:
    """Pool row 0 holds a text that matches everywhere; what an engine leaves in a length may be anything."""
    shape = completed(PLAIN | {"batch": 2, "scans": 2, "block": 4})
    outputs = {"tokens_ptr": poison(2, 4, dtype=torch.int64)}
    inputs = {
        "rows_ptr": torch.zeros(2, dtype=torch.int64),
        "seq_lens_ptr": torch.tensor([-3, 2**40]),
        "text_ptr": torch.ones(2, 16, dtype=torch.int32),
    }
    scratches = {
        "partial_key_ptr": poison(2, 8, 1, dtype=torch.int64),
        "partial_token_ptr": poison(2, 8, 1, dtype=torch.int32),
        "arrivals_ptr": torch.zeros(2, dtype=torch.int32),
    }
    expected = {"tokens_ptr": torch.zeros(2, 4, dtype=torch.int64)}
    check(launcher, look_up(shape, corpus=False, width=0), (2, shape["scans"]), inputs, scratches, outputs, expected)


starts = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "window": st.sampled_from([8, 13, 16, 31]),
        "block": st.sampled_from([4, 16, 32]),
    }
)


@quick
@given(shape=starts)
def test_rings_after_a_prefill(launcher: Launcher, shape: Case) -> None:
    """Ragged prompts, those of padding rows among them: every entry of a request's row, and no other row."""
    source, window = generator(shape["seed"]), shape["window"]
    rows = random_rows(source, shape["batch"], POOL)
    lens = [integer(source, 0, (1, window, 3 * window)[integer(source, 0, 2)]) for _ in rows]
    prompts = [torch.randint(1, 99, (n,), generator=source).tolist() for n in lens]
    first = torch.randint(100, 199, (len(rows),), generator=source, dtype=torch.int32)
    inputs = {
        "rows_ptr": rows,
        "seq_lens_ptr": torch.tensor(lens),
        "first_ptr": first,
        "prompt_ptr": torch.tensor([token for prompt in prompts for token in prompt], dtype=torch.int64),
    }
    outputs = {"text_ptr": poison(POOL, window, dtype=torch.int32)}
    expected = {"text_ptr": outputs["text_ptr"].clone()}
    (text,) = OPS["ngram.start"](tuple(inputs.values()), {"window": window}, {})
    for b, row in enumerate(rows.tolist()):
        if row:
            expected["text_ptr"][row] = text[b]
            assert text[b].tolist() == ring([*prompts[b], int(first[b])], window)
    grid = (len(rows), -(-window // shape["block"]))
    check(launcher, start(window, shape["block"]), grid, inputs, {}, outputs, expected)


def test_prompts_of_a_batch_longer_than_a_block_of_lengths(launcher: Launcher) -> None:
    """A prompt begins where the sum of the lengths before it says, of however many; here 290, all of padding rows."""
    lens = torch.arange(300) % 3
    rows = torch.zeros(300, dtype=torch.int64)
    rows[290] = 1
    begin = int(lens[:290].sum())
    prompt = torch.arange(int(lens.sum()))
    inputs = {"rows_ptr": rows, "seq_lens_ptr": lens, "first_ptr": torch.full((300,), 7, dtype=torch.int32)}
    expected = poison(2, 8, dtype=torch.int32)
    expected[1] = torch.tensor([begin, begin + 1, 7, 0, 0, 0, 0, 0][:8])
    assert lens[290] == 2
    arguments = {**inputs, "prompt_ptr": prompt}
    outputs = {"text_ptr": poison(2, 8, dtype=torch.int32)}
    check(launcher, start(8, 8), (300, 1), arguments, {}, outputs, {"text_ptr": expected})
