"""What makes vLLM's workers and its scheduler, as its adapter touches it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from .vllm_modules import Scheduler, Worker
from .vllm_tables import at


@at("v1.executor.abstract")
class Executor:
    """Calls workers, which are in processes of their own: what is said there and back is pickled."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    def collective_rpc(
        self, method: Callable[[Worker], Any], timeout: float | None = None, args: tuple[Any, ...] = ()
    ) -> list[Any]:
        sent = pickle.dumps(method)
        return [pickle.loads(pickle.dumps(pickle.loads(sent)(worker, *args))) for worker in self.workers]


@at("v1.engine.core")
class EngineCore:
    """Has the scheduler, which is made when workers have captured."""

    def __init__(self, vllm_config: Any, executor: Executor) -> None:
        self.model_executor = executor
        self._initialize_kv_caches(vllm_config)
        self.scheduler = Scheduler(vllm_config)

    def _initialize_kv_caches(self, vllm_config: Any) -> None:
        """Workers have done that here."""
