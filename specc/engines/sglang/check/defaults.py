"""What SGLang takes where its command line says nothing: attention backend, page, shape, draft, graphs.

Most of it is looked up in what the release itself has answered (`make answers`, `tests/sglang/resolved_answers.py`).
SGLang chooses the backend before the shape, so a tree that nobody has written is none yet where the backend is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from specc.compiler.config.archs import Gpu
from specc.engines.sglang.check.command_line import ANSWERS

B200 = ("sm_100", "sm_103")
LATENT = ("mla", "dsa")
"""Layouts of KV caches that have latent rows, whether attention reads all of them or some."""

UNWRITTEN, CHAIN, PAGED, TREE = "unwritten", "chain", "paged chain", "tree"
"""What is known of the drafts when the backend is chosen: nothing, a chain, one on pages that are written, a tree."""


def drafts(topk: int | None, page_size: int | None) -> str:
    """Return what SGLang knows of the drafts where ``--speculative-eagle-topk`` and ``--page-size`` say this."""
    if topk is None:
        return UNWRITTEN
    chain = CHAIN if page_size in (None, 1) else PAGED
    return chain if topk == 1 else TREE


@dataclass(frozen=True)
class Default:
    """The attention that SGLang takes by itself.

    Attributes:
        backend: the name of the attention backend.
        prefill, decode: those of prefill and decode, where they are others.
        draft: the draft's, by SGLang's name of the algorithm, where it is another.
        page_size: tokens per page that come with it.
        forced: whether they do though others are written.
        kept: whether they do though a backend is written.

    """

    backend: str
    prefill: str = ""
    decode: str = ""
    draft: Mapping[str, str] = field(default_factory=dict[str, str])
    page_size: int | None = None
    forced: bool = False
    kept: bool = False


def default(arch: str, cache: str, architecture: str, known: str, *, deterministic: bool) -> Default | None:
    """Return what SGLang takes where no attention backend is written; ``known`` is what `drafts` says.

    Return None where SGLang was not asked, or has not said.
    """
    if architecture and architecture not in ANSWERS.architectures - ANSWERS.heads:
        return None
    names = (f"{architecture} dsa", "dsa") if cache == "dsa" else (architecture, "mla" if cache in LATENT else "mha")
    row = next(row for name in names if (row := _rows("attention").get((name, arch))) is not None)
    columns = (f"{known}, deterministic", "deterministic") if deterministic else ()
    said = next(row[column] for column in (*columns, known, "usual") if column in row)
    return Default(**said) if isinstance(said, dict) else Default(said) if said is not None else None


@cache
def _rows(table: str) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return the rows of a table by name and by GPU: their keys have a name and all GPUs that they are of."""
    split = ((key.partition(" on "), row) for key, row in ANSWERS.tables[table].items())
    return {(name, arch): row for (name, _, archs), row in split for arch in archs.split()}


def pages_of(parts: Mapping[str, str], arch: str, cache: str, known: str) -> dict[str, list[int]]:
    """Return the pages of every attention backend that decides on them, the first of which it takes instead of another.

    ``parts`` are the backends by what each is of: ``attention``, ``prefill``, ``decode`` and ``draft``.
    """
    kind = f"{'mla' if cache in LATENT else 'mha'} {TREE if known == TREE else CHAIN}"
    rows = {backend: _rows("pages").get((backend, arch), {}) for backend in sorted(parts.values())}
    said = {backend: row.get(kind, row.get("usual")) for backend, row in rows.items()}
    decides = {backend for part, backend in parts.items() if (row := said[backend]) and part in row["as"]}
    return {backend: row["sizes"] for backend, row in said.items() if backend in decides}


class DraftShape(NamedTuple):
    """What is drafted: steps, drafts kept in each, nodes."""

    num_steps: int
    topk: int
    num_draft_tokens: int


WRITTEN = "written"
"""The word in SGLang's answers for a shape that has to be written."""


def shape(algorithm: str, architecture: str) -> DraftShape | None:
    """Return what SGLang drafts where nothing of it is written, by the target's class.

    Return None where SGLang then starts no server.
    """
    said = ANSWERS.tables["shapes"]
    name = algorithm if algorithm in said else "EAGLE"  # as which SGLang runs the others
    sizes = said.get(f"{architecture} {name}", said[name])
    return None if sizes == WRITTEN else DraftShape(*sizes)


def max_requests(architecture: str) -> int:
    """Return how many requests a server with speculation has at once, where nothing of it is written."""
    said = ANSWERS.tables["max_requests"]
    return said.get(architecture, said["usual"])


RING = 16
"""How many tokens' records SGLang keeps of a state, where nothing of it is written."""

FEW_REQUESTS = 32
"""As many as this or fewer: a server that decodes has rows for twice as many that another one prefills."""


def on_their_way(requests: int | None) -> int:
    """Return how many requests have rows beside those that run, by ``--max-running-requests`` where that is written."""
    return 2 * requests if requests is not None and requests <= FEW_REQUESTS else 0


def compressed_kernels(arch: str, written: str, ranks: int) -> str | None:
    """Return the kernels that SGLang takes for compressed keys by itself, by the class that a directory names.

    Return None where they are the same for all.
    """
    row = _rows("kernels").get((written, arch))
    return None if row is None else str(_from(row, ranks))


def most_captured(gpu: Gpu, ranks: int) -> int:
    """Return of how many requests SGLang's largest graph is, where nothing of it is written."""
    return _from(_from(ANSWERS.tables["most_captured"], gpu.memory), ranks)


def _from(starts: Mapping[str, Any], number: int) -> Any:
    """Return the entry of the last start up to a number."""
    return starts[str(max(int(start) for start in starts if int(start) <= number))]


def captured(most: int) -> list[int]:
    """Return the sizes of batches of which SGLang captures a speculative step, up to the largest."""
    sizes = {most}
    begin = 0
    for end, step in ANSWERS.tables["captured_steps"].items():
        sizes |= {*range(begin + step, min(int(end), most) + 1, step)}
        begin = int(end)
    return sorted(sizes)
