"""What of a program no argument of its server says, and what a server can have: how `specc init` asks an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specc.compiler.config.estimate.choice import ProposedShape
from specc.compiler.config.proposal import quoted
from specc.compiler.config.schema import draws_tokens, weighs_drafts

GREEDY = "greedy"
"""The key `verify` where nothing says another one."""


def listed(words: str) -> list[str]:
    """Return words that have commas between them."""
    return [word.strip() for word in words.split(",") if word.strip()]


@dataclass(frozen=True)
class Limits:
    """What a server can have of shapes: the batches of its steps, whether trees, and whether several shapes."""

    buckets: tuple[int, ...]
    trees: bool
    several: bool


@dataclass(frozen=True)
class Wanted:
    """Keys of a program that no argument of the server says.

    Attributes:
        name: the configuration's; None for one made of the algorithm.
        verify: the key; None where the server's arguments may say it.
        verified_by: what says it.
        logits, best_logprobs: the keys.
        sampling, outputs: the keys as words with commas between them.
        shapes: the key likewise, by names such as 5x4x8 and 3; of a server's own shape if there are none.
        head, token_map: the draft's keys.
        states: the target's key `state_form`.
        budget: the key as words likewise.
        returned: outputs that answers of the server are made of -> the argument that says so.
        proposed: shapes instead of these, with buckets and why.

    """

    name: str | None = None
    verify: str | None = None
    verified_by: str = "--verify"
    sampling: str = ""
    outputs: str = ""
    best_logprobs: int = 0
    logits: str = "gathered"
    shapes: str = ""
    head: str = "engine"
    token_map: Path | None = None
    states: str = "engine"
    budget: str = ""
    returned: Mapping[str, str] = field(default_factory=dict[str, str])
    proposed: tuple[ProposedShape, ...] = ()

    @property
    def draws(self) -> bool:
        """Return whether the program draws tokens."""
        return self.verify is not None and draws_tokens(self.verify)

    @property
    def weighs(self) -> bool:
        """Return whether the program weighs drafts by what they were drawn from."""
        return self.verify is not None and weighs_drafts(self.verify)

    def lines(self) -> list[str]:
        """Return the keys as lines of YAML, none for those that have their defaults."""
        sampling, outputs = listed(self.sampling), dict.fromkeys(listed(self.outputs), "--outputs") | {**self.returned}
        origins = ", ".join(dict.fromkeys(outputs.values()))
        budgets = [int(word) if word.isdecimal() else word for word in listed(self.budget)]
        return [
            *([f"verify: {json.dumps(self.verify or GREEDY)} # {self.verified_by}"] if sampling or self.draws else []),
            *([f"sampling: {json.dumps(sampling)} # --sampling"] if sampling else []),
            *([f"outputs: {json.dumps([*outputs])} # {origins}"] if outputs else []),
            *([f"best_logprobs: {self.best_logprobs} # --best-logprobs"] if self.best_logprobs else []),
            *([f"budget: {json.dumps(budgets if len(budgets) > 1 else budgets[0])} # --budget"] if budgets else []),
            *([f"logits: {json.dumps(self.logits)} # --logits"] if self.logits != "gathered" else []),
        ]

    def of_target(self) -> list[str]:
        """Return the target's keys as lines of its block."""
        return [f"  state_form: {json.dumps(self.states)} # --states"] if self.states != "engine" else []

    def of_draft(self) -> list[str]:
        """Return the keys of the draft's block, likewise."""
        path = "" if self.token_map is None else quoted(str(self.token_map.absolute()))
        return [
            *([f"  head: {json.dumps(self.head)} # --head"] if self.head != Wanted.head else []),
            *([f"  token_map: {path} # --token-map"] if path else []),
        ]
