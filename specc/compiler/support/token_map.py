"""Maps of reduced vocabularies: which of the target's tokens a draft scores, one for each row of its head.

A map is a list of tokens, strictly ascending, so that of equal logits the lowest token is drafted, as with a whole
vocabulary. Files that list them have one of two forms: a JSON array, or what torch saves of a list or a tensor, as for
SGLang's ``--speculative-token-map``. EAGLE3 heads have a tensor ``d2t`` of offsets: row i scores token i + d2t[i].
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from specc.compiler.support.files.archives import bounded
from specc.compiler.support.files.reading import read_regular, why_unreadable
from specc.compiler.support.files.weights import whole_numbers
from specc.runtime.plan import token_map

OFFSETS = "d2t"
"""The tensor of offsets in the weights of a head."""


class TokenMapError(ValueError):
    """What is wrong with a map: a diagnostic's ``code``, the message, and a ``hint`` or None."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


def read_token_map(path: Path, *, served: bool = False) -> list[int]:
    """The tokens that a file lists, in its order; of one that a server reads, too, if it is `served`.

    Raises:
        TokenMapError: ``map/unreadable``.
    """
    try:
        content = read_regular(path, token_map.MOST_BYTES)
    except (OSError, ValueError) as error:
        raise TokenMapError("map/unreadable", f"cannot read the token map '{path}': {why_unreadable(error)}") from error
    array = content.lstrip()[:1] == b"["
    if served and not array:
        hint = "write one: specc hot-tokens does so, for a file whose name does not end with .pt"
        raise TokenMapError("map/unreadable", f"'{path}' is no JSON array, which alone a server reads", hint)
    try:
        tokens = token_map.listed(content.decode("utf-8")) if array else _saved_by_torch(content)
    except Exception as error:  # torch's reader raises anything on odd files
        reason = str(error).strip().split("\n")[0][:120]
        message = f"'{path}' is neither a JSON array nor a list that torch has saved: {reason}"
        raise TokenMapError("map/unreadable", message) from error
    try:
        return token_map.tokens_of(tokens)
    except ValueError as error:
        hint = f"write whole numbers, one per row, of at most {token_map.MOST_TOKENS} tokens"
        raise TokenMapError("map/unreadable", f"'{path}' is no list of tokens", hint) from error


def _saved_by_torch(content: bytes) -> Any:
    """Return what torch has saved, a tensor as a list; raises anything, as torch does on odd files."""
    import torch  # the only reader of these files; what compiles other configurations does without torch

    if zipfile.is_zipfile(io.BytesIO(content)):
        bounded(io.BytesIO(content), token_map.MOST_BYTES).close()
    loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(loaded, torch.Tensor):
        return loaded
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if loaded.layout != torch.strided or loaded.dim() != 1 or loaded.dtype not in whole:
        raise ValueError(f"a tensor of {loaded.dtype} and {loaded.dim()} axes is no list of whole numbers")
    if len(loaded) > token_map.MOST_TOKENS:  # one that repeats its memory takes none of its own
        raise ValueError(f"it has more than {token_map.MOST_TOKENS} values")
    return loaded.tolist()


def read_offsets(directory: Path) -> list[int] | None:
    """The tokens that the weights of a head say its rows score; None where no safetensors file has the tensor.

    Raises:
        TokenMapError: ``map/unreadable``.
    """
    for path in sorted(directory.glob("*.safetensors")):
        try:
            offsets = whole_numbers(path, OFFSETS, token_map.MOST_TOKENS)
        except (OSError, ValueError) as error:
            message = f"cannot read {OFFSETS} of '{path}': {why_unreadable(error)}"
            raise TokenMapError("map/unreadable", message) from error
        if offsets is not None:
            return from_offsets(offsets)
    return None


def from_offsets(offsets: Sequence[int]) -> list[int]:
    """The token of every row, of what is added to its number."""
    return [row + offset for row, offset in enumerate(offsets)]


def check_token_map(tokens: Sequence[int], rows: int, vocabulary: int) -> None:
    """Refuse a map that is not one of ``rows`` tokens of a vocabulary, strictly ascending.

    Raises:
        TokenMapError: ``map/length``, ``map/range``, ``map/repeated`` or ``map/unsorted``.
    """
    if len(tokens) != rows:
        raise TokenMapError("map/length", f"the token map has {len(tokens)} entries, and the draft scores {rows}")
    wrong = next((row for row, token in enumerate(tokens) if not 0 <= token < vocabulary), None)
    if wrong is not None:
        message = f"entry {wrong} of the token map is {tokens[wrong]}, and the target knows tokens 0..{vocabulary - 1}"
        raise TokenMapError("map/range", message)
    if len(set(tokens)) < len(tokens):
        seen: set[int] = set()
        token = next(token for token in tokens if token in seen or seen.add(token))
        raise TokenMapError("map/repeated", f"the token map has token {token} twice")
    falls = next((row for row, (a, b) in enumerate(pairwise(tokens)) if a > b), None)
    if falls is not None:
        message = f"entry {falls + 1} of the token map, {tokens[falls + 1]}, is below the one before, {tokens[falls]}"
        raise TokenMapError("map/unsorted", message, "sort the map, and rows of a head that was made for it with it")
