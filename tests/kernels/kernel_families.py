"""What docs/kernels.md says about the arguments of the kernel families, as data.

Written from the document and not from the templates, so that a template that drifts is caught. "T" is the
dtype of logits, "H" that of hidden states. A condition is the flag that makes an entry exist; "!flag" its
opposite.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Arguments (name, triton type, condition) and constants (name, condition) of one family, in order."""

    stem: str
    flags: tuple[str, ...]
    arguments: tuple[tuple[str, str, str], ...]
    constants: tuple[tuple[str, str], ...]

    def names(self, flags: Mapping[str, bool]) -> list[str]:
        """The names of the arguments that exist under `flags`, in order."""
        return [name for name, _, condition in self.arguments if holds(condition, flags)]

    def signature(self, flags: Mapping[str, bool], logits: str, hidden: str) -> tuple[tuple[str, str], ...]:
        """(name, triton type) of the arguments that exist under `flags`."""
        kinds = {"*T": f"*{logits}", "*H": f"*{hidden}"}
        return tuple((n, kinds.get(kind, kind)) for n, kind, condition in self.arguments if holds(condition, flags))

    def constant_names(self, flags: Mapping[str, bool]) -> list[str]:
        """The names of the constexprs that exist under `flags`, in order."""
        return [name for name, condition in self.constants if holds(condition, flags)]

    def combinations(self) -> Iterator[dict[str, bool]]:
        """Every assignment of the flags."""
        for values in itertools.product([False, True], repeat=len(self.flags)):
            yield dict(zip(self.flags, values, strict=True))


def holds(condition: str, flags: Mapping[str, bool]) -> bool:
    """Whether an entry with this condition exists."""
    if condition.startswith("!"):
        return not flags[condition[1:]]
    return not condition or flags[condition]


SCRATCH = (
    ("partial_value_ptr", "*fp32", ""),
    ("partial_index_ptr", "*i32", ""),
    ("arrivals_ptr", "*i32", ""),
    ("health_ptr", "*i32", ""),
)

_ALL = (
    Family(
        "prepare",
        ("hidden", "relay_seq_lens", "draft", "extend_window"),
        (
            ("rows_ptr", "*i64", ""),
            ("seq_lens_ptr", "*i64", "!relay_seq_lens"),
            ("relay_seq_lens_ptr", "*i64", "relay_seq_lens"),
            ("req_to_token_ptr", "*i32", ""),
            ("req_to_token_stride", "i64", ""),
            ("relay_bonus_ptr", "*i32", ""),
            ("relay_topk_index_ptr", "*i64", ""),
            ("relay_hidden_ptr", "*H", "hidden"),
            ("out_seq_lens_ptr", "*i64", "relay_seq_lens"),
            ("health_ptr", "*i32", ""),
            ("tokens_ptr", "*i64", ""),
            ("draft_tokens_ptr", "*i64", "draft"),
            ("draft_positions_ptr", "*i64", "draft"),
            ("draft_slots_ptr", "*i64", "draft"),
            ("draft_hidden_ptr", "*H", "hidden"),
            ("verify_positions_ptr", "*i64", ""),
            ("verify_slots_ptr", "*i64", ""),
            ("extend_positions_ptr", "*i64", "extend_window"),
            ("extend_slots_ptr", "*i64", "extend_window"),
        ),
        (
            ("N", ""),
            ("A", "extend_window"),
            ("FORWARDS", "draft"),
            ("DRAFT_OFFSET", "draft"),
            ("EXTEND_OFFSET", "extend_window"),
            ("MAX_B", "draft"),
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
        ("accept_index", "publish"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *SCRATCH,
            ("tokens_ptr", "*i64", ""),
            ("seq_lens_ptr", "*i64", ""),
            ("predict_ptr", "*i32", ""),
            ("accept_index_ptr", "*i32", "accept_index"),
            ("accept_lens_ptr", "*i32", ""),
            ("new_seq_lens_ptr", "*i64", ""),
            ("bonus_ptr", "*i32", ""),
            ("extend_ids_ptr", "*i64", ""),
            ("select_ptr", "*i64", ""),
            ("relay_seq_lens_ptr", "*i64", "publish"),
        ),
        (("N", ""), ("V", ""), ("STRIDE", ""), ("SPLITS", ""), ("BLOCK", ""), ("HEALTH_BIT", "")),
    ),
    Family(
        "extend_stash",
        ("hidden", "seq_lens"),
        (
            ("rows_ptr", "*i64", ""),
            ("logits_ptr", "*T", ""),
            *SCRATCH,
            ("bonus_ptr", "*i32", ""),
            ("hidden_ptr", "*H", "hidden"),
            ("seq_lens_ptr", "*i64", "seq_lens"),
            ("relay_bonus_ptr", "*i32", ""),
            ("relay_topk_index_ptr", "*i64", ""),
            ("relay_hidden_ptr", "*H", "hidden"),
            ("relay_seq_lens_ptr", "*i64", "seq_lens"),
        ),
        (
            ("V", ""),
            ("STRIDE", ""),
            ("SPLITS", ""),
            ("BLOCK", ""),
            ("HEALTH_BIT", ""),
            ("W", "hidden"),
            ("BLOCK_W", "hidden"),
        ),
    ),
)

FAMILIES = {family.stem: family for family in _ALL}
