"""`specc hot-tokens`: the most frequent tokens of texts, for drafts that score no others (arXiv 2502.14856, FR-Spec).

The head of a draft is the largest read of its forward, and a few tokens are most of any text. What a draft cannot
propose is never lost: the target decides.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specc.cli.progress import progress
from specc.cli.reporting import reporting
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.reading import read_text
from specc.compiler.support.files.writing import write_output
from specc.compiler.support.render import printable

EXAMPLES = {
    "hot-tokens": ("specc hot-tokens corpus/*.txt --tokenizer models/target --size 32768 -o hot.json",),
}
"""What `--help` ends with."""

_MOST_BYTES = 1 << 30
"""Largest text that is read."""
_CHUNK = 1 << 20
"""Characters, up to the next line, that are made tokens of at once."""


def hot_tokens(
    text: Annotated[list[Path], typer.Argument(metavar="TEXT...", help="Texts such as the model will write.")],
    tokenizer: Annotated[Path, typer.Option(help="Directory of the target's tokenizer.")],
    size: Annotated[int, typer.Option(min=1, help="How many tokens.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write: .json, or .pt as torch saves a list.")
    ],
) -> None:
    """Count the tokens of texts and write the most frequent ones, ascending: the map for draft.token_map.

    Servers of SGLang and vLLM read it as .json (SPECC_TOKEN_MAP), and so does check --token-map.
    The tokens that end a text are always among them. Of equally frequent tokens the lowest are taken.
    """
    with reporting():
        from specc.lab.engine.models.loading import load_tokenizer

        loaded: Any = load_tokenizer(tokenizer)
        if size > len(loaded):
            raise typer.BadParameter(f"the tokenizer has {len(loaded)} tokens", param_hint="--size")
        counts: Counter[int] = Counter()
        with progress("counting tokens", sum(os.path.getsize(file) for file in text if os.path.isfile(file))) as shown:
            for chunk in _chunks(text):
                counts.update(loaded(chunk, add_special_tokens=False, verbose=False)["input_ids"])
                shown.advance(parts=len(chunk.encode()))
        kept = most_frequent(counts, size, len(loaded), _ends(tokenizer, loaded))
        write_output(output, _content(kept, output), folders=True)
        total, covered = sum(counts.values()), sum(counts[token] for token in kept)
        share = f"{100 * covered / total:.2f} %" if total else "none"
        message = f"wrote {output}: {size:,} of {len(loaded):,} tokens, {share} of the {total:,} in the text"
        typer.echo(printable(message))


def most_frequent(counts: Counter[int], size: int, vocabulary: int, always: Sequence[int]) -> list[int]:
    """The ``size`` most frequent tokens, ascending; of equally frequent ones the lowest, ``always`` among them."""
    rest = sorted(set(range(vocabulary)) - set(always), key=lambda token: (-counts[token], token))
    return sorted([*always, *rest][:size])


def _ends(directory: Path, tokenizer: Any) -> list[int]:
    """The tokens that end a text, by the tokenizer and the model's settings."""
    ends = [tokenizer.eos_token_id]
    path = directory / "generation_config.json"
    try:
        ids = json.loads(read_text(path)).get("eos_token_id") if path.exists() else None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DiagnosticError(Diagnostic("config/unreadable", f"cannot read {str(path)!r}: {error}")) from error
    ends += ids if isinstance(ids, list) else [ids]
    return sorted({end for end in ends if type(end) is int and 0 <= end < len(tokenizer)})


def _chunks(files: Sequence[Path]) -> Iterator[str]:
    """The texts in pieces of whole lines."""
    for file in files:
        try:
            text = read_text(file, _MOST_BYTES)
        except (OSError, ValueError) as error:
            message = f"cannot read the text {str(file)!r}: {error}"
            raise DiagnosticError(Diagnostic("config/unreadable", message)) from error
        begin = 0
        while begin < len(text):
            line = text.find("\n", begin + _CHUNK)
            end = len(text) if line < 0 else line + 1
            yield text[begin:end]
            begin = end


def _content(tokens: list[int], path: Path) -> bytes:
    """The file of a map."""
    if path.suffix != ".pt":
        return (json.dumps(tokens) + "\n").encode()
    import torch

    saved = io.BytesIO()
    torch.save(tokens, saved)
    return saved.getvalue()
