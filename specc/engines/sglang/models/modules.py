"""SGLang's modules of multi-token prediction, each of which drafts a token: all run over the accepted path.

Every module has a runner of its own, with its attention and its keys and values. It reads hidden states of the target,
or with some models (Step-3.5) what the module before it made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from torch import Tensor

from ..attention.step import Attention
from ..kinds.several_modules import chained
from ..parts.parts import Parts
from .forwards import ForwardOutputs, Forwards

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import ExtendModuleCall


class ModuleForwards(Forwards):
    """The callback `extend_module` of a program, beside those of its target.

    Args:
        worker: a MultiLayerEagleWorkerV2, or one derived from it.
        attention, parts, shape: as of `Forwards`.

    """

    def __init__(self, worker: Any, attention: Attention, parts: Parts, shape: Any) -> None:
        """Run the models of `worker`."""
        super().__init__(worker, attention, parts, shape)
        self._modules, self._chained = worker.draft_worker.draft_runner_list, chained(worker)
        self._made: Tensor | None = None

    def extend_module(self, **call: Unpack[ExtendModuleCall]) -> ForwardOutputs:
        """See `ExtendModuleCall`."""
        step, hidden = call["step"], call["hidden"]
        read = hidden if self._made is None or step == 0 else self._made
        capture = "full" if self._chained else call["capture"]
        outputs = self._over_path(self._modules[step], step, call, read, capture)
        if self._chained:
            assert outputs.hidden is not None  # all of them are captured
            self._made = outputs.hidden.view(hidden.shape)
        return outputs._replace(hidden=None)

    def _run(
        self, runner: Any, backend: Any, batch: Any, shape: tuple[int, ...], starts: Tensor | None = None
    ) -> ForwardOutputs:
        # What a module makes goes to the next one as it is before the last norm.
        batch.return_hidden_states_before_norm = runner is not self._target
        return super()._run(runner, backend, batch, shape, starts)
