"""Numbers of steps among which SGLang changes while it runs (`--speculative-adaptive`), and its states of each.

SGLang's controller keeps of each candidate all that its own step runs on: attention backends and graphs of that many
steps. It changes between them by what was accepted lately, and by the size of the batch. It hears what every step has
accepted, whosever it was. So a program with the candidates as its shapes follows the controller, and a step that is
left to SGLang goes on with the same number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def candidates_of(worker: Any) -> tuple[int, ...]:
    """The numbers of steps among which a worker of SGLang's changes, ascending; none where it does not."""
    controller = _controller(worker)
    return () if controller is None else tuple(controller.candidate_steps)


def follows(worker: Any) -> Callable[[int], str] | None:
    """What names the shape of the next step of so many requests, as SGLang has it; None where it always is the same."""
    if _controller(worker) is None:
        return None

    def follow(requests: int) -> str:
        worker.activate_step_by_batch(requests)
        return str(worker.speculative_num_steps)

    return follow


@contextlib.contextmanager
def in_state(worker: Any, num_steps: int) -> Iterator[None]:
    """Have a worker in its state of so many steps, and in the one that it had on leaving; as it is where it has one."""
    controller = _controller(worker)
    if controller is None:
        yield
        return
    own = worker.speculative_num_steps
    controller._activate(num_steps)
    try:
        yield
    finally:
        controller._activate(own)


def _controller(worker: Any) -> Any:
    return getattr(worker, "adaptive_controller", None)
