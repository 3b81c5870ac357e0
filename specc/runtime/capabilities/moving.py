"""What a bound program has whose kernels move rows of the engine's KV buffers: those buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..bound import BoundStep
from ..memory.kv_pools import KvPools
from ..memory.kv_rows import KvRows, Parts


class MovingStep(BoundStep):
    """A step that compacts accepted paths, or copies tails of pages."""

    def _moved(self, kv_pools: Mapping[str, Sequence[Tensor]], state_pools: Parts) -> KvRows:
        """Those that the plan binds. BindError unless they fit."""
        super()._moved({}, state_pools)
        return KvPools(self._plan, self._device, kv_pools)
