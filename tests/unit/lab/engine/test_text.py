"""Streaming text: the pieces add up to what the tokenizer says, and stop strings never leak."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.lab.engine.serving.requests.request import Request, Score, StopConditions
from specc.lab.engine.serving.requests.text import Detokenizer, StopText


class ByteTokenizer:
    """Every token is one byte of UTF-8."""

    def decode(self, ids: Sequence[int], **_: object) -> str:
        """Return the bytes as text, broken characters replaced."""
        return bytes(ids).decode("utf-8", errors="replace")


def make_request(stop: Sequence[str] = (), **more: object) -> Request:
    """Return a request over the byte tokenizer, with a prompt that ends in the middle of nothing."""
    conditions = StopConditions(stop=tuple(stop), **{"max_new_tokens": 1000, **more})
    prompt = tuple(b"prompt ")
    return Request(0, prompt, conditions, StopText(Detokenizer(ByteTokenizer(), prompt), conditions.stop))


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=30))
def test_pieces_add_up(text: str) -> None:
    detokenizer = Detokenizer(ByteTokenizer(), tuple(b"before"))
    pieces = [detokenizer.push([token]) for token in text.encode()]
    assert "".join(pieces) + detokenizer.close() == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(
    tokens=st.one_of(st.text(max_size=30).map(lambda text: text.encode(errors="replace")), st.binary(max_size=30)),
    cuts=st.lists(st.integers(0, 9), max_size=8),
)
def test_any_number_of_tokens_at_once(tokens: bytes, cuts: list[int]) -> None:
    """What is certain does not depend on how many tokens come together, also where one ends within a character."""
    at_once, one_by_one = (Detokenizer(ByteTokenizer(), tuple(b"before")) for _ in range(2))
    for cut in [*cuts, len(tokens)]:
        step, tokens = tokens[:cut], tokens[cut:]
        assert at_once.push(step) == "".join(one_by_one.push([token]) for token in step)
    assert at_once.close() == one_by_one.close()


def test_a_long_text_that_never_becomes_certain() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    assert detokenizer.push(b"\xff" * 1500) == ""
    assert detokenizer.close() == "\ufffd" * 1500


@given(text=st.text("abé", max_size=12), most=st.integers(1, 20), cuts=st.lists(st.integers(1, 5)))
def test_text_that_nobody_watches_is_made_at_the_end(text: str, most: int, cuts: list[int]) -> None:
    tokens = text.encode()
    watched, unwatched = (make_request(max_new_tokens=most) for _ in range(2))
    for cut in [*cuts, len(tokens)]:
        step, tokens = tokens[:cut], tokens[cut:]
        seen, unseen = watched.accept(step), unwatched.accept(step, streamed=False)
        assert [event.token for event in seen] == [event.token for event in unseen]
        assert not any(event.text for event in unseen if event.finish_reason is None)
    unwatched.catch_up()
    assert watched.completion() == unwatched.completion()


def test_a_broken_end_is_handed_out_at_the_end_only() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    assert detokenizer.push("é".encode()[:1]) == ""
    assert detokenizer.close() == "\ufffd"
    assert detokenizer.close() == ""


@given(text=st.text("ab", max_size=40), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_strings(text: str, stops: list[str]) -> None:
    request = make_request(stops)
    events = request.accept(text.encode())
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    streamed = "".join(event.text for event in events)
    if ends:
        assert request.finish_reason == "stop"
        assert len(request.generated) == min(ends)
        seen = text[: min(ends)]
        assert request.completion().text == seen[: min(seen.index(s) for s in stops if s in seen)]
    else:
        assert request.finish_reason is None
        assert request.completion().text == text
        streamed += request.text.close() if request.text else ""
    assert streamed == request.completion().text


def test_a_possible_beginning_is_held_back_until_it_is_decided() -> None:
    request = make_request(["END"])
    texts = [event.text for event in request.accept(b"xENyEND!")]
    assert texts == ["x", "", "", "ENy", "", "", ""]
    assert request.finish_reason == "stop"


def test_held_text_comes_out_when_the_length_is_reached() -> None:
    request = make_request(["END"], max_new_tokens=3)
    events = request.accept(b"xENd")
    assert [event.text for event in events] == ["x", "", "EN"]
    assert request.finish_reason == "length"
    assert events[-1].finish_reason == "length"


def test_eos_wins_over_length_and_drops_the_surplus() -> None:
    request = make_request(max_new_tokens=2, eos_token_ids=frozenset({ord(".")}))
    assert [event.token for event in request.accept(b"a.bc")] == [ord("a"), ord(".")]
    assert request.finish_reason == "eos"
    assert request.accept(b"more") == []


@pytest.mark.parametrize("bad", [{"max_new_tokens": 0}, {"stop": ("",)}])
def test_conditions_that_can_never_be_met(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        StopConditions(**bad)


class FaultyTokenizer(ByteTokenizer):
    """Cannot decode while it is told so."""

    def __init__(self) -> None:
        self.countdown = -1

    def decode(self, ids: Sequence[int], **_: object) -> str:
        self.countdown -= 1
        if self.countdown == 0:
            raise UnicodeError("no")
        return super().decode(ids)


@given(text=st.text("abé", min_size=1, max_size=12), fails=st.integers(1, 30), cuts=st.lists(st.integers(1, 5)))
def test_a_tokenizer_that_raises_changes_nothing(text: str, fails: int, cuts: list[int]) -> None:
    """What a step emits is taken whole or not at all, whichever of its calls fails; taken again, it fits."""
    tokenizer, tokens = FaultyTokenizer(), text.encode()
    conditions = StopConditions(len(tokens), stop=("ba",))
    request, reference = (
        Request(0, (), conditions, StopText(Detokenizer(t), conditions.stop)) for t in (tokenizer, ByteTokenizer())
    )
    tokenizer.countdown = fails
    streamed = ""
    for cut in [*cuts, len(tokens)]:
        step, tokens = tokens[:cut], tokens[cut:]
        before = request.completion()
        try:
            events = request.accept(step)
        except UnicodeError:
            assert request.completion() == before
            events = request.accept(step)
        streamed += "".join(event.text for event in events)
        reference.accept(step)
        assert request.completion() == reference.completion()
    assert request.finish_reason
    assert streamed == request.completion().text


@pytest.mark.parametrize("fails", range(1, 5))
def test_scores_are_taken_back_with_their_tokens(fails: int) -> None:
    """Of a step whose text cannot be made nothing stays, whichever token's it is; then what the request keeps."""
    tokenizer = FaultyTokenizer()
    request = Request(0, (), StopConditions(5), StopText(Detokenizer(tokenizer), ()))
    scores = [Score(-0.5 * number, ((number, -0.1),)) for number in range(6)]
    request.accept(b"a", scores[:1])
    tokenizer.countdown = fails
    with pytest.raises(UnicodeError):
        request.accept(b"bcdef", scores[1:])
    assert request.completion().scores == (scores[0],)
    events = request.accept(b"bcdef", scores[1:])
    assert [event.score for event in events] == scores[1:5]
    assert request.completion().scores == tuple(scores[:5])
