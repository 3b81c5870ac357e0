"""How many tokens to draft next, of a program that was compiled for several numbers of steps.

Whatever is chosen, the text is the target's own: drafts are verified at every depth. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Protocol, TypeAlias

StepTimes: TypeAlias = Mapping[int, Mapping[int, float]]
"""By num_steps and bucket how long a step takes, in any unit."""


class DepthPolicy(Protocol):
    """Chooses the depth of the next step from the results of earlier ones.

    With overlap a step is chosen before the last one's results are known.
    """

    def choose(self, requests: int) -> int:
        """The num_steps of the next decode step, of so many requests: one that the program was compiled for."""
        ...

    def observe(self, num_steps: int, accept_lens: Sequence[int]) -> None:
        """Take note of a step that drafted `num_steps` tokens: tokens committed per request, bonus included."""
        ...


class FixedDepth:
    """Always the same depth."""

    def __init__(self, num_steps: int) -> None:
        """`num_steps`: what to draft in every step."""
        self._num_steps = num_steps

    def choose(self, requests: int) -> int:
        """See `DepthPolicy`."""
        return self._num_steps

    def observe(self, num_steps: int, accept_lens: Sequence[int]) -> None:
        """Nothing to learn."""


class AcceptanceDepth:
    """The depth that commits most tokens per time, by an estimate of how often the draft at each position is accepted.

    A position's rate is a mean over what was seen there lately, drawn towards the rate of the position before it, the
    first one's towards 1: where nothing was drafted for long, drafts count as no worse than those before them. A step
    of S drafts commits 1 + r1 + r1 r2 + ... + r1 ... rS tokens. It takes as long as `times` say of the bucket that its
    requests run in, or else 1 + step_cost * S times as long as one without drafts. Every bucket has a depth of its own.
    To change it must promise more than `gain`, and so much that noise does not make it swing.

    Args:
        depths: num_steps of every program.
        step_cost: time of one draft step, in times of a step without drafts, where there are no `times`.
        window: steps after which an observation counts for 1 / e of a new one.
        pull: observations that the rate of the position before counts for.
        gain: by how much, relative, another depth must be better.
        patience: steps to stay at a depth at least.
        times: how long steps take, of every depth in the same buckets.

    Raises ValueError without depths, or on numbers that make no sense.

    """

    def __init__(
        self,
        depths: Sequence[int],
        *,
        step_cost: float = 0.1,
        window: float = 32.0,
        pull: float = 2.0,
        gain: float = 0.05,
        patience: int = 8,
        times: StepTimes | None = None,
    ) -> None:
        """Begin with the deepest."""
        if not depths or min(depths) < 0 or max(depths) < 1 or step_cost < 0 or window <= 0 or pull <= 0:
            raise ValueError("depths go from 0 to 1 or more, step_cost is not below 0, window and pull are above")
        if gain < 0 or patience < 0:
            raise ValueError("gain and patience are not below 0")
        self._depths = sorted(set(depths))
        self._step_cost, self._pull, self._gain, self._patience = step_cost, pull, gain, patience
        self._times, self._buckets = times, _buckets(self._depths, times)
        self._keep = 1.0 - min(1.0, 1.0 / window)
        self._tried = [0.0] * self._depths[-1]
        self._accepted = [0.0] * self._depths[-1]
        self._bucket = self._buckets[-1]
        self._current = dict.fromkeys(self._buckets, self._depths[-1])
        self._stayed = dict.fromkeys(self._buckets, 0)

    def choose(self, requests: int) -> int:
        """The current depth of the bucket that holds so many requests, or a better one if it promises enough."""
        bucket = next((bucket for bucket in self._buckets if bucket >= requests), self._buckets[-1])
        rates, current = self.rates(), self._current[bucket]
        speeds = {num_steps: self._speed(rates[:num_steps], bucket) for num_steps in self._depths}
        best = max(speeds, key=speeds.__getitem__)
        enough = speeds[best] > (1.0 + self._gain) * speeds[current]
        if enough and self._stayed[bucket] >= self._patience:
            self._current[bucket], self._stayed[bucket] = best, 0
        self._bucket = bucket
        return self._current[bucket]

    def observe(self, num_steps: int, accept_lens: Sequence[int]) -> None:
        """Count what was tried and accepted at every position; a request that commits n tokens accepts n - 1."""
        if not accept_lens:
            return
        self._stayed[self._bucket] += 1
        for position in range(len(self._tried)):
            self._tried[position] *= self._keep
            self._accepted[position] *= self._keep
            if position < num_steps:
                self._tried[position] += sum(length > position for length in accept_lens)
                self._accepted[position] += sum(length > position + 1 for length in accept_lens)

    def rates(self) -> list[float]:
        """How often the draft at each position is accepted, of those whose predecessors were."""
        rates: list[float] = []
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            before = rates[-1] if rates else 1.0
            rates.append((accepted + self._pull * before) / (tried + self._pull))
        return rates

    def _speed(self, rates: Sequence[float], bucket: int) -> float:
        """Tokens per time of a step in a bucket that drafts at positions of these rates."""
        committed = reached = 1.0
        for rate in rates:
            reached *= rate
            committed += reached
        if self._times is not None:
            return committed / self._times[len(rates)][bucket]
        return committed / (1.0 + self._step_cost * len(rates))


def _buckets(depths: Sequence[int], times: StepTimes | None) -> list[int]:
    """The buckets that times are known of, ascending; one without times. ValueError unless all depths have the same."""
    if times is None:
        return [1]
    buckets = {depth: sorted(times.get(depth, ())) for depth in depths}
    known = buckets[depths[0]]
    if not known or any(other != known for other in buckets.values()):
        raise ValueError(f"times are of every depth, in the same buckets, and these are of {buckets}")
    if any(not isfinite(time) or time <= 0 for depth in depths for time in times[depth].values()):
        raise ValueError("times are above 0 and finite")
    return known
