"""What stands around SGLang's models in a program's forwards, the same for steps of all shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .experts import Padding
from .gathered import Gathered
from .heads import Head
from .lora import Adapters
from .mrope import Deltas
from .routed import Routed
from .runners import runners_of, scored_tokens
from .shards import Shards
from .states import NgramHistory, RecurrentStates


@dataclass(frozen=True)
class Parts:
    """What stands around the models of one program.

    Attributes:
        shards: what of its logits a rank hands over.
        head: the draft's, if the program computes it.
        deltas: how far texts are from their places, which every prefill says.
        padding: how many rows are tokens, which is said before every step.
        routed: the experts that tokens went to, in a server that returns them.
        gathered: how many rows each rank has, where forwards exchange them.
        adapters: those of requests (LoRA), which are said before every step.
        states: what the target's recurrent layers keep of requests.
        history: the last tokens of texts, by which the target looks n-grams up.

    """

    shards: Shards
    head: Head
    deltas: Deltas
    padding: Padding
    routed: Routed
    gathered: Gathered
    adapters: Adapters
    states: RecurrentStates
    history: NgramHistory


def parts_of(package: Any, program: Any, worker: Any, table: Tensor, group: Any) -> Parts:
    """Those of the program of a package in a worker; `table` is that of KV slots, `group` of ranks."""
    runners = runners_of(worker)
    return Parts(
        shards=Shards(program.plan, runners),
        head=Head(package, program.plan, runners, scored_tokens(worker), group),
        deltas=Deltas(runners, table),
        padding=Padding(program.plans, table.device),
        routed=Routed(table),
        gathered=Gathered(table.device),
        adapters=Adapters(runners["target"]),
        states=RecurrentStates(worker, program.plans),
        history=NgramHistory(worker, program.plans),
    )
