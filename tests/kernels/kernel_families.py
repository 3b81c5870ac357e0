"""What docs/kernels.md says about the arguments of the kernel families, as data.

Written from the document and not from the templates, so that a template that drifts is caught. "T" is the
dtype of logits, "H" that of hidden states. A condition is the flag that makes an entry exist; "!flag" its
opposite; "one & other" both. An argument with {} in its name stands for one per draft step.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """Arguments (name, triton type, condition) and constants (name, condition) of one family, in order.

    Of the flags ``counted`` none is set without the one before it. ``steps`` are values to try for the flag
    `steps`, a number, of a family that has it.
    """

    stem: str
    flags: tuple[str, ...]
    arguments: tuple[tuple[str, str, str], ...]
    constants: tuple[tuple[str, str], ...]
    counted: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()

    def names(self, flags: Mapping[str, int]) -> list[str]:
        """The names of the arguments that exist under `flags`, in order."""
        return [name for name, _ in self.signature(flags, "", "")]

    def signature(self, flags: Mapping[str, int], logits: str, hidden: str) -> tuple[tuple[str, str], ...]:
        """(name, triton type) of the arguments that exist under `flags`."""
        kinds = {"*T": f"*{logits}", "*H": f"*{hidden}"}
        return tuple(
            (name, kinds.get(kind, kind))
            for pattern, kind, condition in self.arguments
            if holds(condition, flags)
            for name in per_step(pattern, flags)
        )

    def constant_names(self, flags: Mapping[str, int]) -> list[str]:
        """The names of the constexprs that exist under `flags`, in order."""
        return [name for name, condition in self.constants if holds(condition, flags)]

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Every assignment of the flags, with every number of steps there is to try."""
        for values in itertools.product([False, True], repeat=len(self.flags)):
            flags = dict(zip(self.flags, values, strict=True))
            if all(flags[before] or not flags[flag] for before, flag in itertools.pairwise(self.counted)):
                yield from ({**flags, "steps": steps} for steps in self.steps) if self.steps else [flags]


def per_step(pattern: str, flags: Mapping[str, int]) -> list[str]:
    """The arguments that a name stands for. Only the steps between the first and the last have `kept`."""
    if "{}" not in pattern:
        return [pattern]
    kept = range(1, flags["steps"] + flags["fused"] - 1)
    return [pattern.format(step) for step in (kept if pattern.startswith("kept") else range(flags["steps"]))]


def holds(condition: str, flags: Mapping[str, int]) -> bool:
    """Whether an entry with this condition exists."""
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

_ALL = (
    Family(
        "prepare",
        ("tree", "hidden", "relay_seq_lens", "draft", "extend_window"),
        (
            ("rows_ptr", "*i64", ""),
            ("seq_lens_ptr", "*i64", "!relay_seq_lens"),
            ("relay_seq_lens_ptr", "*i64", "relay_seq_lens"),
            ("req_to_token_ptr", "*i32", ""),
            ("req_to_token_stride", "i64", ""),
            ("relay_bonus_ptr", "*i32", ""),
            ("relay_topk_index_ptr", "*i64", ""),
            ("relay_topk_p_ptr", "*fp32", "tree"),
            ("relay_hidden_ptr", "*H", "hidden"),
            ("out_seq_lens_ptr", "*i64", "relay_seq_lens"),
            ("health_ptr", "*i32", ""),
            ("bonus_ptr", "*i32", "tree"),
            ("topk_p_ptr", "*fp32", "tree"),
            ("topk_index_ptr", "*i64", "tree"),
            ("tokens_ptr", "*i64", "!tree"),
            ("draft_tokens_ptr", "*i64", "draft & !tree"),
            ("draft_positions_ptr", "*i64", "draft"),
            ("draft_slots_ptr", "*i64", "draft"),
            ("draft_hidden_ptr", "*H", "hidden"),
            ("verify_positions_ptr", "*i64", "!tree"),
            ("verify_slots_ptr", "*i64", ""),
            ("extend_positions_ptr", "*i64", "extend_window"),
            ("extend_slots_ptr", "*i64", "extend_window"),
        ),
        (
            ("N", ""),
            ("K", ""),
            ("FORWARDS", "draft"),
            ("DRAFT_OFFSET", "draft"),
            ("PAGE", "draft"),
            ("ROOM", "draft"),
            ("MAX_B", "draft"),
            ("A", "extend_window"),
            ("EXTEND_OFFSET", "extend_window"),
            ("W", "hidden"),
            ("BLOCK_W", "hidden"),
        ),
    ),
    Family(
        "draft_step",
        ("advance",),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *SCRATCH,
            ("tokens_ptr", "*i64", ""),
            ("column", "i32", ""),
            ("draft_tokens_ptr", "*i64", "advance"),
            ("draft_positions_ptr", "*i64", "advance"),
        ),
        (("V", ""), ("STRIDE", ""), ("N", ""), ("SPLITS", ""), ("BLOCK", ""), ("HEALTH_BIT", "")),
    ),
    Family(
        "row_argmax",
        ("clear",),
        (("rows_ptr", "*i64", ""), ("logits_ptr", "*T", ""), *SCRATCH, ("index_ptr", "*i32", "")),
        (("V", ""), ("STRIDE", ""), ("SPLITS", ""), ("BLOCK", ""), ("HEALTH_BIT", "")),
    ),
    Family(
        "verify_commit",
        ("tree", "accept_index", "logprobs", "publish"),
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
            ("extend_ids_ptr", "*i64", ""),
            ("select_ptr", "*i64", ""),
            ("logprobs_ptr", "*fp32", "logprobs"),
            ("relay_seq_lens_ptr", "*i64", "publish"),
        ),
        (("N", ""), ("A", ""), ("V", ""), ("STRIDE", ""), ("SPLITS", ""), ("BLOCK", ""), ("HEALTH_BIT", "")),
    ),
    Family(
        "extend_stash",
        ("topk", "hidden", "seq_lens"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *((name, kind, "!topk") for name, kind, _ in SCRATCH[:2]),
            *((name, kind, "topk") for name, kind, _ in TOPK_SCRATCH[:3]),
            *SCRATCH[2:],
            ("bonus_ptr", "*i32", ""),
            ("hidden_ptr", "*H", "hidden"),
            ("seq_lens_ptr", "*i64", "seq_lens"),
            ("relay_bonus_ptr", "*i32", ""),
            ("relay_topk_index_ptr", "*i64", ""),
            ("relay_topk_p_ptr", "*fp32", "topk"),
            ("relay_hidden_ptr", "*H", "hidden"),
            ("relay_seq_lens_ptr", "*i64", "seq_lens"),
        ),
        (
            ("K", "topk"),
            ("V", ""),
            ("STRIDE", ""),
            ("SPLITS", ""),
            ("BLOCK", ""),
            ("HEALTH_BIT", ""),
            ("W", "hidden"),
            ("BLOCK_W", "hidden"),
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
        counted=VALUES,
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
)

FAMILIES = {family.stem: family for family in _ALL}
