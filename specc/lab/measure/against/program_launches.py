"""specc's side: the launches of a program on the tensors of one work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from specc.lab.measure.against.work import Work, observed
from specc.runtime.backends import Backend
from specc.runtime.entry.frame import Frame
from specc.runtime.memory.arena import Arena
from specc.runtime.memory.kv_pools import KvPools
from specc.runtime.plan.nodes import External, Launch
from specc.runtime.plan.plan import Plan
from specc.runtime.state.relay import RelayPools

READ = ("tokens", "positions", "slots", "mask", "select", "hidden")
"""What forwards read, of all that is compared; the rest is which requests they are for."""


class ProgramLaunches:
    """The launches of one plan on the tensors of one work."""

    def __init__(self, work: Work, plan: Plan, backend: Backend) -> None:
        self.work, self.plan, self.backend = work, plan, backend
        self.arena = Arena(plan, work.device)
        bound = [owner for owner, pool in plan.kv_pools.items() if pool.bound]
        self.kv = KvPools(plan, work.device, {owner: [kept.clone() for kept in work.kv[owner]] for owner in bound})
        self.kv.write_pointers(self.arena)
        pools = RelayPools(plan, self.arena)
        self.frame = Frame(plan, self.arena, pools, work.table, work.shape.batch, kv=self.kv.buffers)
        self.arena.view("req_pool_indices", work.shape.batch).copy_(work.rows)
        self.launches = [node for node in plan.nodes("step") if isinstance(node, Launch)]
        self._adopt()
        self.reset()

    def _adopt(self) -> None:
        """Let the work's tensors stand for what the forwards return."""
        work = self.work
        for node in self.plan.nodes("step"):
            if not isinstance(node, External):
                continue
            tensors = {
                "draft": lambda step: (work.draft_logits[step], work.draft_hidden[step]),
                "target": lambda _: (work.target_logits, work.target_hidden),
                "extend": lambda _: (work.extend_logits, work.extend_hidden),
            }[node.callback](node.step)
            results = node.results
            for name, tensor in zip(("logits", "hidden"), tensors, strict=True):
                if name in results:
                    self.frame.adopt(results[name], tensor)

    def reset(self) -> None:
        """Back to the state that the work starts from."""
        for name, pool in self.work.pools.items():
            self.pool(name).copy_(pool)

    def queueing(self, nodes: Sequence[Launch]) -> Callable[[], None]:
        """What queues these launches of a step."""

        def run() -> None:
            for node in nodes:
                self.backend.launch(node, self.frame)

        return run

    def nodes(self, *names: str) -> tuple[Launch, ...]:
        """The launches of these names in a step; without its number, the first."""
        stems = [(node, (node.name, node.name.rstrip("0123456789").rstrip("_"))) for node in self.launches]
        return tuple(next(node for node, known in stems if name in known) for name in names)

    def step(self) -> None:
        """All launches of a step, in order, without the forwards."""
        self.queueing(self.launches)()

    def pool(self, name: str) -> Tensor:
        """The P pool rows of a carried value."""
        return self.arena.buffer(f"relay.{name}")

    def observed_step(self) -> dict[str, Tensor]:
        """Run a step; what it decided, by the names that both sides use."""
        return observed(self._watched())

    def _watched(self) -> Iterator[tuple[str, Tensor]]:
        """What each forward would read when its turn comes, the results, and what is carried on."""
        for node in self.plan.nodes("step"):
            if isinstance(node, Launch):
                self.backend.launch(node, self.frame)
            elif isinstance(node, External):
                operands = [(name, value) for name, value in node.operands.items() if name in READ]
                yield from ((f"{node.name}.{name}", self.frame.read(value)) for name, value in operands)
        results = [output for output in self.plan.outputs if output.entry == "step" and output.name != "health"]
        yield from ((output.name, self.frame.read(output.value)) for output in results)
        yield from ((f"relay.{name}", self.pool(name)[self.work.rows]) for name in self.work.pools)
