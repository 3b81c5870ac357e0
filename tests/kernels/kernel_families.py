"""What docs/kernels.md says about the arguments of the kernel families, as data.

Written from the document and not from the templates, so that a template that drifts is caught. "T" is the
dtype of logits, "H" that of hidden states. A condition is the flag that makes an entry exist; "!flag" its
opposite; "one & other" both, "one | other" either. A name with {} in it stands for one per draft step, one with
{flag} for one per name that the flag lists, {one+other} of both; several words for as many per name. "*" is the dtype
of the field whose name it is.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

FIELDS = {
    "bonus": "*i32",
    "seq_lens": "*i64",
    "topk_p": "*fp32",
    "topk_index": "*i64",
    "text": "*i32",
    "hidden": "*H",
    "states": "*fp32",
}
"""Carried fields that the lists of names are tried with."""


@dataclass(frozen=True)
class Family:
    """Arguments (name, triton type, condition) and constants (name, condition) of one family, in order.

    The first flag of a pair in ``needs`` is not set without the second. ``steps`` are values to try for the flag
    `steps`, a number, of a family that has it. ``lists`` are values to try for the flags that list names, and for those
    that depend on them.
    """

    stem: str
    flags: tuple[str, ...]
    arguments: tuple[tuple[str, str, str], ...]
    constants: tuple[tuple[str, str], ...]
    needs: tuple[tuple[str, str], ...] = ()
    steps: tuple[int, ...] = ()
    lists: tuple[Mapping[str, bool | tuple[str, ...]], ...] = ({},)

    def names(self, flags: Mapping[str, Any]) -> list[str]:
        """The names of the arguments that exist under `flags`, in order."""
        return [name for name, _ in self.signature(flags, "", "")]

    def signature(self, flags: Mapping[str, Any], logits: str, hidden: str) -> tuple[tuple[str, str], ...]:
        """(name, triton type) of the arguments that exist under `flags`."""
        kinds = {"*T": f"*{logits}", "*H": f"*{hidden}"}
        return tuple(
            (name, kinds.get(kind, kind))
            for pattern, shown, condition in self.arguments
            if holds(condition, flags)
            for name, field in expand(pattern, flags)
            for kind in [FIELDS.get(field, shown) if shown == "*" else shown]
        )

    def constant_names(self, flags: Mapping[str, Any]) -> list[str]:
        """The names of the constexprs that exist under `flags`, in order."""
        found = (expand(pattern, flags) for pattern, condition in self.constants if holds(condition, flags))
        return [name for names in found for name, _ in names]

    def flag_names(self) -> set[str]:
        """The flags that exist."""
        return {*self.flags, *self.lists[0], *(["steps"] if self.steps else [])}

    def flagged(self, *on: str) -> dict[str, bool]:
        """These flags set, and no other."""
        assert set(on) <= set(self.flags)
        return {flag: flag in on for flag in self.flags}

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Every assignment of the flags, with every number of steps there is to try."""
        for values in itertools.product([False, True], repeat=len(self.flags)):
            flags = dict(zip(self.flags, values, strict=True))
            if all(flags[needed] or not flags[flag] for flag, needed in self.needs):
                steps = [{"steps": steps} for steps in self.steps] or [{}]
                yield from ({**flags, **count, **lists} for count in steps for lists in self.lists)


def expand(pattern: str, flags: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The names that a name stands for, each with the field or value it is about."""
    listed = re.search(r"\{([a-z_+]+)\}", pattern)
    if listed is None:
        return [(name, "") for name in per_step(pattern, flags)]
    fields = [field for flag in listed[1].split("+") for field in flags[flag]]
    return [(word.replace(listed[0], field), field) for field in fields for word in pattern.split()]


def per_step(pattern: str, flags: Mapping[str, int]) -> list[str]:
    """The arguments that a name stands for. Only the steps between the first and the last have `kept`."""
    if "{}" not in pattern:
        return [pattern]
    kept = range(1, flags["steps"] + flags["fused"] - 1)
    return [pattern.format(step) for step in (kept if pattern.startswith("kept") else range(flags["steps"]))]


def holds(condition: str, flags: Mapping[str, Any]) -> bool:
    """Whether an entry with this condition exists."""
    if "|" in condition:
        return any(holds(part, flags) for part in condition.split("|"))
    parts = [part.strip() for part in condition.split("&") if part.strip()]
    return all(not flags[part[1:]] if part.startswith("!") else flags[part] for part in parts)


SCRATCH = (
    ("partial_value_ptr", "*fp32", ""),
    ("partial_index_ptr", "*i32", ""),
    ("arrivals_ptr", "*i32", ""),
    ("health_ptr", "*i32", ""),
)

TOPK_SCRATCH = (
    ("partial_key_ptr", "*i64", ""),
    ("partial_max_ptr", "*fp32", ""),
    ("partial_sum_ptr", "*fp32", ""),
    ("arrivals_ptr", "*i32", ""),
    ("health_ptr", "*i32", ""),
)

VALUES = ("value0", "value1", "value2", "value3")

_NO_CARRY: dict[str, Any] = dict.fromkeys(
    (
        *("scalars", "vectors", "wide", "kept_scalars", "kept_vectors", "kept_wide", "roots", "repeated"),
        *("length", "chain_root", "chain_drafts", "admitted", "places", "windows", "runs"),
    ),
    (),
)
_STEP = _NO_CARRY | {
    "health": True,
    "given": False,
    "admit": True,
    "admitted": ("rows", "seq_lens"),
    "scalars": ("seq_lens", "bonus"),
    "length": ("seq_lens",),
}

PREPARED = (
    _NO_CARRY | {"health": False, "given": False, "admit": False, "scalars": ("bonus",), "kept_scalars": ("bonus",)},
    _NO_CARRY
    | {"health": True, "given": True, "admit": True, "admitted": ("rows",)}
    | {"places": ("verify_positions",), "windows": ("verify_slots",)},
    _STEP
    | {"kept_scalars": ("seq_lens", "bonus"), "roots": ("bonus",), "wide": ("hidden",), "kept_wide": ("hidden",)}
    | {"places": ("seed_positions", "draft_positions"), "windows": ("verify_slots",)},
    _STEP
    | {"kept_scalars": ("seq_lens", "bonus"), "vectors": ("topk_p", "topk_index")}
    | {"kept_vectors": ("topk_p", "topk_index"), "wide": ("hidden",), "repeated": ("hidden",)}
    | {"places": ("draft_positions",), "windows": ("verify_slots",), "runs": ("draft_slots",)},
    _STEP
    | {"kept_scalars": ("seq_lens",), "vectors": ("topk_index",), "kept_vectors": ("topk_index",)}
    | {"wide": ("hidden", "states"), "kept_wide": ("states",), "repeated": ("hidden",), "roots": ("bonus",)}
    | {"chain_root": ("bonus",), "chain_drafts": ("topk_index",), "places": ("draft_positions", "verify_positions")}
    | {"windows": ("verify_slots", "extend_slots"), "runs": ("draft_slots",)},
)
"""What steps begin with: hardly anything, no carry, an assistant's, a tree's, and nearly all there is."""

_ALL = (
    Family(
        "prepare",
        (),
        (
            ("rows_ptr", "*i64", ""),
            ("seq_lens_ptr", "*i64", "given"),
            ("req_to_token_ptr", "*i32", "admit"),
            ("req_to_token_stride", "i64", "admit"),
            ("columns", "i64", "admit"),
            ("relay_{scalars+vectors+wide}_ptr", "*", ""),
            ("health_ptr", "*i32", "health"),
            ("admitted_{admitted}_ptr", "*i64", ""),
            ("out_{kept_scalars+kept_vectors+kept_wide}_ptr", "*", ""),
            ("root_{roots}_ptr", "*i64", ""),
            ("tokens_ptr", "*i64", "chain_root"),
            ("kv_{places+windows+runs}_ptr", "*i64", ""),
            ("copies_{repeated}_ptr", "*", ""),
        ),
        (
            ("A", "chain_root"),
            ("K", "runs | repeated"),
            ("FORWARDS", "runs"),
            ("MAX_B", "runs"),
            *((name, "admit") for name in ("WINDOW", "LONGEST", "HEALTH_BIT")),
            ("OFFSET_{places} STRIDE_{places} SIZE_{places}", ""),
            ("OFFSET_{windows} SIZE_{windows}", ""),
            ("OFFSET_{runs} PAGE_{runs} ROOM_{runs}", ""),
            ("W_{vectors+wide}", ""),
            ("BLOCK_W", "wide"),
        ),
        lists=PREPARED,
    ),
    Family(
        "draft_step",
        ("start", "token", "advance", "shift", "repeat"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *SCRATCH,
            ("tokens_ptr", "*i64", ""),
            ("column", "i32", ""),
            ("bonus_ptr", "*i32", "start"),
            ("draft_tokens_ptr", "*i64", "token"),
            ("draft_positions_ptr", "*i64", "advance"),
            ("shifted_ptr", "*i64", "shift"),
            ("accept_lens_ptr", "*i32", "shift"),
            ("hidden_ptr", "*H", "repeat"),
            ("draft_hidden_ptr", "*H", "repeat"),
        ),
        (
            *((name, "") for name in ("V", "STRIDE", "N", "SPLITS", "BLOCK", "HEALTH_BIT")),
            ("A", "shift"),
            ("W", "repeat"),
            ("BLOCK_W", "repeat"),
        ),
    ),
    Family(
        "row_argmax",
        ("health", "clear", "join", "unread"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *SCRATCH[:-1],
            ("health_ptr", "*i32", "health"),
            ("index_ptr", "*i32", "!unread"),
            ("bonus_ptr", "*i32", "join"),
            ("tokens_ptr", "*i64", "join"),
        ),
        (
            *((name, "") for name in ("ROWS", "V", "STRIDE", "SPLITS", "BLOCK")),
            ("HEALTH_BIT", "health"),
        ),
        needs=(("clear", "health"), ("unread", "join")),
    ),
    Family(
        "row_topk",
        ("health", "clear", "p", "repeat"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *TOPK_SCRATCH[:-1],
            ("health_ptr", "*i32", "health"),
            ("index_ptr", "*i64", ""),
            ("p_ptr", "*fp32", "p"),
            ("hidden_ptr", "*H", "repeat"),
            ("draft_hidden_ptr", "*H", "repeat"),
        ),
        (
            *((name, "") for name in ("K", "V", "STRIDE", "SPLITS", "BLOCK")),
            ("HEALTH_BIT", "health"),
            ("W", "repeat"),
            ("BLOCK_W", "repeat"),
        ),
        needs=(("clear", "health"),),
    ),
    Family(
        "verify_commit",
        ("tree", "accept_index", "logprobs"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *SCRATCH,
            ("partial_sum_ptr", "*fp32", "logprobs"),
            ("tokens_ptr", "*i64", ""),
            ("parent_ptr", "*i64", "tree"),
            ("seq_lens_ptr", "*i64", ""),
            ("predict_ptr", "*i32", ""),
            ("accept_index_ptr", "*i32", "accept_index"),
            ("accept_lens_ptr", "*i32", ""),
            ("new_seq_lens_ptr", "*i64", ""),
            ("bonus_ptr", "*i32", ""),
            ("extend_ids_ptr", "*i64", "extend_ids"),
            ("select_ptr", "*i64", "select"),
            ("logprobs_ptr", "*fp32", "logprobs"),
            ("relay_{lengths+bonuses+rings}_ptr", "*", ""),
        ),
        (
            *((name, "") for name in ("N", "A", "V", "STRIDE", "SPLITS", "BLOCK", "HEALTH_BIT")),
            ("L_{rings}", ""),
        ),
        lists=(
            {"extend_ids": False, "select": False, "lengths": (), "bonuses": (), "rings": ()},
            {"extend_ids": True, "select": True, "lengths": ("seq_lens",), "bonuses": (), "rings": ()},
            {"extend_ids": False, "select": False, "lengths": ("seq_lens",), "bonuses": ("bonus",), "rings": ("text",)},
        ),
    ),
    Family(
        "extend_stash",
        (),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *((name, kind, "!topk") for name, kind, _ in SCRATCH[:2]),
            *((name, kind, "topk") for name, kind, _ in TOPK_SCRATCH[:3]),
            *SCRATCH[2:],
            ("new_{narrow+wide}_ptr", "*", ""),
            ("relay_{narrow+index+p+wide}_ptr", "*", ""),
        ),
        (
            ("K", "topk"),
            *((name, "") for name in ("V", "STRIDE", "SPLITS", "BLOCK", "HEALTH_BIT")),
            ("W_{narrow+wide}", ""),
            ("BLOCK_W", "wide"),
        ),
        lists=tuple(
            {"topk": topk, "index": ("topk_index",), "p": ("topk_p",) if topk else (), "narrow": narrow, "wide": wide}
            for topk, narrow, wide in (
                (False, ("bonus",), ()),
                (True, ("bonus",), ()),
                (False, ("bonus", "seq_lens"), ("hidden",)),
                (True, ("bonus", "seq_lens"), ("hidden", "states")),
            )
        ),
    ),
    Family(
        "stash",
        (),
        (
            ("rows_ptr", "*i64", "copied | last"),
            ("accept_index_ptr", "*i32", "last | kept"),
            ("accept_lens_ptr", "*i32", "last | kept"),
            ("new_{copied+last}_ptr relay_{copied+last}_ptr", "*", ""),
            ("nodes_{kept}_ptr kept_{kept}_ptr", "*", ""),
        ),
        (
            ("A", "last | kept"),
            ("BLOCK", ""),
            ("ROW_{copied+last} UNIT_{copied+last}", ""),
            ("KEPT_ROW_{kept} KEPT_UNIT_{kept}", ""),
        ),
        lists=(
            {"copied": ("bonus",), "last": (), "kept": ()},
            {"copied": (), "last": ("hidden",), "kept": ()},
            {"copied": (), "last": (), "kept": ("states",)},
            {"copied": ("bonus", "seq_lens"), "last": ("topk_index", "hidden"), "kept": ("states",)},
        ),
    ),
    Family(
        "tree_step",
        ("frontier", "gather", "advance"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *TOPK_SCRATCH,
            ("parent_scores_ptr", "*fp32", ""),
            ("index_ptr", "*i64", ""),
            ("candidates_ptr", "*fp32", ""),
            ("tokens_ptr", "*i64", "frontier"),
            ("scores_ptr", "*fp32", "frontier"),
            ("kept_ptr", "*i64", "frontier"),
            ("hidden_ptr", "*H", "gather"),
            ("next_hidden_ptr", "*H", "gather"),
            ("positions_ptr", "*i64", "advance"),
        ),
        (
            ("K", ""),
            ("V", ""),
            ("STRIDE", ""),
            ("SPLITS", ""),
            ("BLOCK", ""),
            ("HEALTH_BIT", ""),
            ("W", "gather"),
            ("BLOCK_W", "gather"),
        ),
    ),
    Family(
        "tree_build",
        ("fused", "mask"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", "fused"),
            *((name, kind, "fused") for name, kind, _ in TOPK_SCRATCH[:-1]),
            ("health_ptr", "*i32", ""),
            ("bonus_ptr", "*i32", ""),
            ("seq_lens_ptr", "*i64", ""),
            ("scores{}_ptr", "*fp32", ""),
            ("tokens{}_ptr", "*i64", ""),
            ("kept{}_ptr", "*i64", ""),
            ("frontier_ptr", "*fp32", "fused"),
            ("tokens_ptr", "*i64", ""),
            ("parent_ptr", "*i64", ""),
            ("positions_ptr", "*i64", ""),
            ("mask_ptr", "*i1", "mask"),
        ),
        (
            ("K", ""),
            ("S", ""),
            ("N", ""),
            ("ORPHAN_BIT", ""),
            ("MODE", "mask"),
            ("WIDTH", "mask"),
            *((name, "fused") for name in ("V", "STRIDE", "SPLITS", "BLOCK", "HEALTH_BIT")),
        ),
        steps=(1, 4),
    ),
    Family(
        "compact",
        ("move", *VALUES),
        (
            ("accept_index_ptr", "*i32", ""),
            ("accept_lens_ptr", "*i32", "move"),
            ("slots_ptr", "*i64", "move"),
            ("kv_pointers_ptr", "*i64", "move"),
            ("kv_stride", "i64", "move"),
            ("value0_ptr", "*H", "value0"),
            ("path0_ptr", "*H", "value0"),
            ("value1_ptr", "*i32", "value1"),
            ("path1_ptr", "*i32", "value1"),
            ("value2_ptr", "*i1", "value2"),
            ("path2_ptr", "*i1", "value2"),
            ("value3_ptr", "*i64", "value3"),
            ("path3_ptr", "*i64", "value3"),
        ),
        (
            ("A", ""),
            ("BLOCK", ""),
            *((name, "move") for name in ("N", "KV_BUFFERS", "KV_ROW", "KV_UNIT", "KV_ALIGN")),
            *((f"{name}{number}", flag) for number, flag in enumerate(VALUES) for name in ("ROW", "UNIT")),
        ),
        needs=tuple((flag, before) for before, flag in itertools.pairwise(VALUES)),
    ),
    Family(
        "duplicate_tail",
        (),
        (
            ("rows_ptr", "*i64", ""),
            ("seq_lens_ptr", "*i64", ""),
            ("req_to_token_ptr", "*i32", ""),
            ("req_to_token_stride", "i64", ""),
            ("kv_pointers_ptr", "*i64", ""),
            ("kv_stride", "i64", ""),
        ),
        tuple(
            (name, "")
            for name in (
                *("K", "OFFSET", "PAGE", "ROOM", "TOKENS", "BLOCK"),
                *("KV_BUFFERS", "KV_ROW", "KV_UNIT", "KV_ALIGN"),
            )
        ),
    ),
    Family(
        "ngram_start",
        (),
        (
            ("rows_ptr", "*i64", ""),
            ("seq_lens_ptr", "*i64", ""),
            ("first_ptr", "*i32", ""),
            ("prompt_ptr", "*i64", ""),
            ("text_ptr", "*i32", ""),
        ),
        (("WINDOW", ""), ("BLOCK", "")),
    ),
    Family(
        "ngram_propose",
        ("corpus", "tree", "mask"),
        (
            ("rows_ptr", "*i64", ""),
            ("seq_lens_ptr", "*i64", ""),
            ("text_ptr", "*i32", ""),
            ("corpus_ptr", "*i32", "corpus"),
            ("corpus_size", "i64", "corpus"),
            ("partial_key_ptr", "*i64", ""),
            ("partial_token_ptr", "*i32", ""),
            ("arrivals_ptr", "*i32", ""),
            ("tokens_ptr", "*i64", ""),
            ("parent_ptr", "*i64", "tree"),
            ("positions_ptr", "*i64", "tree"),
            ("mask_ptr", "*i1", "mask"),
        ),
        (
            *((name, "") for name in ("WINDOW", "LONGEST", "SHORTEST", "K", "S", "N", "BLOCK", "SPLITS")),
            ("LINKS", "tree"),
            ("MODE", "mask"),
            ("WIDTH", "mask"),
        ),
        needs=(("mask", "tree"),),
    ),
)

FAMILIES = {family.stem: family for family in _ALL}
