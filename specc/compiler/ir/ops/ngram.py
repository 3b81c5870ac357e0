"""The `ngram` dialect: drafts looked up in the request's own text (SGLang's NGRAM, vLLM's ngram proposer).

The text is carried as a ring: entry q % L is the token at position q, for the last L positions up to the bonus token,
which stands at position seq_len.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.compiler.ir.opdef import COUNT, STEPS, OpDef
from specc.compiler.ir.signature import TypeMismatch
from specc.compiler.ir.types import TensorType, Type

PERIOD, LAST = "period", "last"
"""What is drafted where nothing was found: the text's period, or its last token."""


def _proposed(_: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> Sequence[Type]:
    if attrs["beyond"] not in (PERIOD, LAST):
        raise TypeMismatch(-1, f"beyond is {attrs['beyond']!r}, and not one of {PERIOD}, {LAST}")
    return [TensorType("i64", ("B", str(attrs["axis"])))]


OPS = (
    OpDef(
        "ngram.start",
        "rows: i64[B], seq_lens: i64[B], first: i32[B], prompt: i64[T] -> text: i32[B, $window]",
        "The ring after a prefill: the end of the ragged prompt at positions below seq_len, ``first`` at seq_len;"
        " entries without a position: 0.",
        {"window": COUNT},
    ),
    OpDef(
        "ngram.propose",
        "rows: i64[B], seq_lens: i64[B], text: i32[B, ?l], corpus?: i32[M] -> tokens: i64[B, $axis]",
        "Column 0 is the bonus token, then ``steps`` tokens per branch, cut at the end of ``axis``: what followed"
        " earlier places that end like the text does. A place matches with the number of last tokens that are equal, at"
        " most ``longest``, at least ``shortest``; longer matches come first, the text before the corpus, later places"
        " before earlier ones; every branch begins with another token. With ``beyond``"
        " period what follows a place in the text goes on into the drafts themselves; past the corpus' end, for"
        " negative tokens and for branches without a place: 0. With ``beyond`` last the bonus token stands for all of"
        " these, and past the text's end. Padding rows: 0.",
        {"axis": str, "beyond": str, "longest": COUNT, "shortest": COUNT, "steps": STEPS},
        infer=_proposed,
        pooled="text",
    ),
)
