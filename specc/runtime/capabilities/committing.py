"""What a bound program has that commits the states of its target's recurrent layers: where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..bound import BoundStep
from ..memory.kv_rows import KvRows, Pairs
from ..memory.state_pools import StatePools
from ..plan.recurrent.state_tables import STATE_POINTERS


class CommittingStep(BoundStep):
    """A step that copies the state of the accepted node."""

    def _moved(self, kv_pools: Mapping[str, Sequence[Tensor]], state_pools: Pairs) -> KvRows:
        """The KV buffers, and the states beside them. BindError unless they fit."""
        if STATE_POINTERS not in self._plan.buffers:
            return super()._moved(kv_pools, state_pools)
        return StatePools(self._plan, self._device, state_pools, super()._moved(kv_pools, {}))
