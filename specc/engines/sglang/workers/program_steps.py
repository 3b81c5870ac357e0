"""What workers of all kinds have: a program that fits is bound when the server starts, and runs the steps it serves."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from sglang.srt.runtime_context import get_parallel

from ..._plugin import TOKENS, chosen, tried
from ..._shapes import SHAPE, TIMES
from .. import relay
from ..binding import capturing
from ..kinds import KindOfDraft
from ..parts.heads import listed
from ..parts.runners import scored_tokens
from ..requests.refusals import refuses_unserved
from ..server import lockstep
from ..server.fit import misfits
from ..server.proof import PROOF, proving
from ..server.ranks import agree
from ..steps import Steps

logger = logging.getLogger(__name__)
ENGINE = "SGLang"

_Worker: Any = object
"""For the checker of types: a worker of SGLang, which `ProgramSteps` is put in front of."""


class ProgramSteps(_Worker):
    """Mixed into a worker of SGLang: a program runs the decode steps that it can serve, SGLang all others.

    Attributes:
        programs: packages of wheels to choose among.
        kind: how it drafts. A class that derives from one with a kind is another worker of SGLang's.
        takes: the parameters of SGLang's own `forward_batch_generation`.
        steps: those of the program that was chosen.

    """

    programs: Sequence[Any] = ()
    kind: KindOfDraft
    takes: Collection[str]
    steps: Steps | None = None

    def init_cuda_graphs(self) -> None:
        """Capture SGLang's graphs, then bind the program that fits, on every rank the same.

        While several ranks bind, each waits for the others in forwards: one that fails ends the server.
        """
        super().init_cuda_graphs()
        if relay.prefills():
            logger.info("specc: no program runs, since this server only prefills")
            return
        # Ranks of a pipeline have no draft.
        if "kind" not in vars(type(self)) or (self.draft_worker is None and not self.kind.model_less):
            return
        group = get_parallel().tp_group
        package, program = tried(lambda: _loaded(self.programs, self), ENGINE) or (None, None)
        of_rank = {"the program": package and f"{package.__name__} {package.__version__}"}
        variables = {name: os.environ.get(name) for name in (SHAPE, TIMES)}
        variables |= {"SPECC_CAPTURE": capturing(self), "SPECC_FALLBACK": refuses_unserved(), PROOF: proving()}
        variables |= {TOKENS: program and listed(package, program.plan, scored_tokens(self))}
        agree(group, of_rank | variables)
        if package is None:
            return
        self.steps = tried(lambda: Steps(package, program, self), ENGINE, must=group.world_size > 1)
        if self.steps is None:
            return
        relay.offer(self.steps)
        lockstep.LockStep.current = self.steps.lockstep
        logger.info("specc: %s runs the decode steps: %s", package.__name__, self.steps.report())

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        """See EAGLEWorkerV2; workers of other kinds take less, and SGLang may give it all the same."""
        given = {"on_publish": on_publish, "grammar_barrier": grammar_barrier, "pp_proxy_tensors": pp_proxy_tensors}
        taken = {name: value for name, value in given.items() if name in self.takes}
        own = partial(super().forward_batch_generation, batch, **taken)
        return self._generated(own, batch, on_publish, grammar_barrier)

    def _generated(self, own: Callable[[], Any], batch: Any, publish: Any, barrier: Any) -> Any:
        """What the program, or SGLang's `own` forward, makes of a batch."""
        steps, reason, relayed = self.steps, "", publish is not None
        if steps is not None and (reason := steps.refuses(batch)) is None:
            return steps.run(batch, publish, barrier)
        if steps is None or batch.forward_mode.is_idle():
            return own()
        if decoding := batch.forward_mode.is_decode():
            steps.tally.leave(reason)
            steps.state.lend(batch, relayed=relayed)
        else:
            steps.admit(batch)
        result = own()
        if decoding:
            steps.note(batch.req_pool_indices, result)
        steps.state.take(batch, result, relayed=relayed)
        return result


def _loaded(programs: Sequence[Any], worker: Any) -> tuple[Any, Any] | None:
    """The package of the program that fits, and it, loaded onto the worker's device."""
    package = chosen(programs, ENGINE, lambda package: misfits(package.plans, worker))
    device = worker.req_to_token_pool.req_to_token.device
    return package and (package, package.load(str(device) if device.type == "cuda" else "cpu"))
