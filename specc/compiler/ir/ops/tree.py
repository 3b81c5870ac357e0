"""The `tree` dialect: growing and linking a draft tree (EAGLE-2, arXiv 2406.16858; SGLang's build_tree)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.compiler.ir.opdef import COUNT, STEPS, OpDef, Trait
from specc.compiler.ir.signature import TypeMismatch
from specc.compiler.ir.types import TensorType, Type

SEEN_SLOTS = "tree.seen_slots"
SELECT, PRODUCT = "tree.select", "tree.product"
"""What links a tree in every step: of candidates that grew from each other, and of places that know nothing of each
other."""
SELECT_SCORED, PRODUCT_SCORED = "tree.select_scored", "tree.product_scored"
"""The same where the target may not have a row for every node: columns best first, and the score of each path."""
SELECTS, LINKS = (SELECT, SELECT_SCORED), (SELECT, SELECT_SCORED, PRODUCT, PRODUCT_SCORED)
"""Those that grew, and all of them."""


def mask_mode(opcode: str, attrs: Mapping[str, Any]) -> str:
    """The mode of a mask, as a configuration names it, from the op that makes it."""
    return "slots" if opcode == SEEN_SLOTS else str(attrs["mode"])


def mask_width(mode: str, nodes: int, longest: int) -> int:
    """``width`` of a `tree.mask`: entries per request (``full``), bytes per node (``bitpacked``), otherwise 0.

    Args:
        mode: of the mask.
        nodes: N.
        longest: tokens of the longest text that a full mask has room for.

    """
    if mode == "full":
        return nodes * (longest + nodes)
    return next(size for size in (1, 2, 4, 8) if 8 * size >= nodes) if mode == "bitpacked" else 0


def _mask(_: Mapping[str, TensorType], attrs: Mapping[str, Any]) -> Sequence[Type]:
    width = int(attrs["width"])
    shapes: dict[str, TensorType] = {
        "full": TensorType("i1", ("B", width)),
        "qlen": TensorType("i1", ("B", "N", "N")),
        "bitpacked": TensorType("u8", ("B", "N", width)),
    }
    if attrs["mode"] not in shapes:
        raise TypeMismatch(-1, f"mode is {attrs['mode']!r}, and not one of {', '.join(shapes)}")
    return [shapes[str(attrs["mode"])]]


def _parts(attrs: Mapping[str, Any]) -> str:
    steps = int(attrs["steps"])
    axes = ["[B, K]", *["[B, K, K]"] * (steps - 1)]
    parts = [f"scores{step}: f32{shape}" for step, shape in enumerate(axes)]
    parts += [f"tokens{step}: i64{shape}" for step, shape in enumerate(axes)]
    return ", ".join([*parts, *(f"kept{step}: i64[B, K]" for step in range(1, steps - 1))])


OPS = (
    OpDef(
        "tree.comb",
        "rows: i64[B] -> parent: i64[B, N], depth: i64[B, N]",
        "Constant links: K branches of ``steps`` nodes hang from the root, one after the other; what does not fit into"
        " N nodes is cut off the last ones. ``parent`` is a column, -1 for the root.",
        {"steps": STEPS},
    ),
    OpDef(
        "tree.grow",
        "scores: f32[B, K], p: f32[B, K, K], index: i64[B, K, K]"
        " -> tokens: i64[B, K], scores: f32[B, K], kept: i64[B, K], candidates: f32[B, K, K]",
        "Path score = parent score * p; keep the best K of K*K; ``kept`` is the candidate id c, its parent c // K.",
    ),
    OpDef(
        "tree.gather",
        "x: T[B, K, *x], kept: i64[B, K] -> x: T[B, K, *x]",
        "Row kept // K of every kept candidate: what its parent's forward produced.",
        traits=frozenset({Trait.PICKS}),
    ),
    OpDef(
        SELECT,
        "rows: i64[B], bonus: i32[B], parts*: ?"
        " -> tokens: i64[B, N], parent: i64[B, N], depth: i64[B, N], orphan: i1[B, N]",
        "From S score, S token and S-2 kept operands: the N-1 best candidates in ascending id, linked to a tree."
        " ``parent`` is a column, -1 for the root and for an ``orphan``, a candidate whose parent was not kept.",
        {"steps": STEPS},
        parts=_parts,
    ),
    OpDef(
        SELECT_SCORED,
        "rows: i64[B], bonus: i32[B], parts*: ?"
        " -> tokens: i64[B, N], parent: i64[B, N], depth: i64[B, N], orphan: i1[B, N], scores: f32[B, E]",
        "The same by descending score, the lower id first on ties: as no candidate scores more than its parent, the"
        " first n columns are a tree for every n. An ``orphan`` is, besides, a candidate that scores more than its"
        " parent. ``scores`` are those of the N-1 paths in that order, how probable it is that all of a path is right;"
        " 0 of padding rows.",
        {"steps": STEPS},
        parts=_parts,
    ),
    OpDef(
        PRODUCT,
        "rows: i64[B], bonus: i32[B], p: f32[B, S, K], index: i64[B, S, K]"
        " -> tokens: i64[B, N], parent: i64[B, N], depth: i64[B, N]",
        "The root and the N-1 best paths over S places that know nothing of each other, a path's score being the"
        " product of its candidates': from the root on the best of what the nodes offer is taken, a node's first child"
        " (the next place's first candidate) or its next sibling, the lowest node first on ties and its sibling before"
        " its child. Columns are in that order, so the first n are a tree for every n.",
        {"steps": STEPS},
    ),
    OpDef(
        PRODUCT_SCORED,
        "rows: i64[B], bonus: i32[B], p: f32[B, S, K], index: i64[B, S, K]"
        " -> tokens: i64[B, N], parent: i64[B, N], depth: i64[B, N], scores: f32[B, E]",
        "The same with the scores of the N-1 paths, as `tree.select_scored` hands them over.",
        {"steps": STEPS},
    ),
    OpDef("tree.positions", "seq_lens: i64[B], depth: i64[B, N] -> positions: i64[B, N]", "seq_len + depth."),
    OpDef(
        "tree.mask",
        "seq_lens: i64[B], parent: i64[B, N] -> mask: ?",
        "Which columns every node attends to: itself, its ancestors and column 0. ``full``: i1[B, width], flat: per"
        " request N rows of seq_len + N columns, the prefix set; ``qlen``: i1[B, N, N]; ``bitpacked``: u8[B, N, width],"
        " bit j is column j, little endian.",
        {"mode": str, "width": COUNT},
        infer=_mask,
        traits=frozenset({Trait.MASKS}),
    ),
    OpDef(
        SEEN_SLOTS,
        "slots: i64[B, N], parent: i64[B, N] -> mask: i32[B, N, N], counts: i32[B, N]",
        "The same columns as the slots that they have in ``slots``: of every node those of its ``counts`` columns,"
        " ascending by column, then slot 0.",
        traits=frozenset({Trait.MASKS}),
    ),
)
