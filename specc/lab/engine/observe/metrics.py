"""An engine's counts as Prometheus metrics.

They are read off the engine when somebody asks, so that serving costs nothing more with them than without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from specc.lab.engine.engine import Engine
from specc.lab.engine.observe.usage import Usage
from specc.lab.engine.serving.requests.request import ABORT, EOS, ERROR, LENGTH, STOP
from specc.runtime.capabilities.budgets.confidence import ConfidenceShape
from specc.runtime.capabilities.shape import AcceptanceShape
from specc.runtime.entry.health import FAULTS
from specc.runtime.plan.shape import Shape


class Metrics:
    """A collector of Prometheus' client over one engine; docs/engine.md lists what it has.

    It may be asked from another thread than the engine's, as an HTTP endpoint does. `registry.unregister(metrics)`
    lets go of the engine.
    """

    def __init__(self, engine: Engine, registry: CollectorRegistry | None = None) -> None:
        """Enter the metrics into a registry, by default one of their own.

        Raises ValueError when the registry has metrics of these names already, such as those of another engine.
        """
        self._usage = Usage(engine)
        self.registry = CollectorRegistry() if registry is None else registry
        self.registry.register(self)

    def text(self) -> str:
        """Return all that is in the registry in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its values of now."""
        yield _accepted_length(self._usage)
        for family, series in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for point in series:
                yield point.read(family, self._usage)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics, so that a registry knows their names."""
        return self.collect()


@dataclass(frozen=True)
class Series:
    """A metric: its name without suffix, what it counts, and its value, or its values by those of one label.

    None is no value.
    """

    name: str
    help: str
    value: Callable[[Usage], float | Mapping[str, float] | Mapping[int, float] | None]
    label: str | None = None

    def read(self, family: type[CounterMetricFamily] | type[GaugeMetricFamily], usage: Usage) -> Metric:
        """Return the metric with its values of now."""
        value = self.value(usage)
        metric = family(self.name, self.help, labels=[self.label] if self.label else [])
        if isinstance(value, Mapping):
            for key, number in value.items():
                metric.add_metric([str(key)], number)
        elif value is not None:
            metric.add_metric([], value)
        return metric


def _accepted_length(usage: Usage) -> Metric:
    """A histogram with a bucket for every length that a step can emit, so that nothing of it is lost."""
    lengths = Counter(usage.engine.stats.accept_lens)
    ends = range(1, usage.engine.plan.size("A") + 1)
    buckets = [(f"{end}.0", float(sum(lengths[length] for length in range(1, end + 1)))) for end in ends]
    return HistogramMetricFamily(
        "specc_accepted_length_tokens",
        "Tokens that a request emitted in one decode step: accepted drafts and the bonus token, up to the text's end.",
        buckets=[*buckets, ("+Inf", float(lengths.total()))],
        sum_value=sum(length * times for length, times in lengths.items()),
    )


def _finished(usage: Usage) -> Mapping[str, float]:
    return {reason: usage.engine.stats.finished[reason] for reason in (LENGTH, EOS, STOP, ABORT, ERROR)}


def _health(usage: Usage) -> Mapping[str, float]:
    """By bit; those that a plugin raises and that have no name go by their number."""
    counts = Counter(usage.engine.stats.health)
    named = {name: counts.pop(bit, 0) for bit, name in enumerate(FAULTS)}
    return named | {str(bit): times for bit, times in sorted(counts.items())}


def _expected(usage: Usage) -> float | None:
    """The rate that a policy expects: its times are in milliseconds."""
    policy = usage.engine.shape
    expected = policy.expected if isinstance(policy, AcceptanceShape | ConfidenceShape) else None
    return None if expected is None else 1e3 * expected


def _by_name(counts: Mapping[Shape, int]) -> Mapping[str, float]:
    """Counts by the names of shapes; another thread may go on counting."""
    return {str(shape): count for shape, count in Counter(counts).items()}


def _seconds(usage: Usage) -> Mapping[str, float]:
    return {"prefill": usage.engine.stats.prefill_seconds, "decode": usage.engine.stats.decode_seconds}


COUNTERS = (
    Series(
        "specc_position_drafted",
        "Request-steps that drafted up to this position of a path, 1 being the first draft.",
        Usage.drafted,
        "position",
    ),
    Series(
        "specc_position_accepted",
        "Request-steps that emitted a draft at this position of a path, and a token behind it.",
        Usage.accepted,
        "position",
    ),
    Series("specc_emitted_tokens", "Tokens handed to their requests.", lambda usage: usage.engine.stats.tokens),
    Series(
        "specc_decode_steps",
        "Decode steps of the whole batch that were launched, by their shape.",
        lambda usage: _by_name(usage.steps_by_shape()),
        "shape",
    ),
    Series(
        "specc_rows_verified",
        "Rows of requests that the target has read in decode steps, by their shape.",
        lambda usage: _by_name(usage.rows_verified()),
        "shape",
    ),
    Series(
        "specc_rows_accepted",
        "Rows of those whose token was emitted, up to the text's end.",
        lambda usage: _by_name(usage.rows_accepted()),
        "shape",
    ),
    Series(
        "specc_rows_saved",
        "Rows of requests that the target would have read besides, if it had read all that was drafted.",
        lambda usage: _by_name(usage.rows_saved()),
        "shape",
    ),
    Series("specc_prefills", "Prefills that were launched.", lambda usage: usage.engine.stats.prefills),
    Series(
        "specc_shared_tokens",
        "Tokens that no prefill ran, because their keys and values were in the pools.",
        lambda usage: usage.engine.stats.shared_tokens,
    ),
    Series("specc_finished_requests", "Requests that ended, by why they did.", _finished, "reason"),
    Series(
        "specc_retractions",
        "Requests that gave their pages back to others and had to wait.",
        lambda usage: usage.engine.stats.retractions,
    ),
    Series(
        "specc_failures",
        "Prefills, decode steps and handovers that raised.",
        lambda usage: usage.engine.stats.failures,
    ),
    Series("specc_kernel_launches", "Launches of generated kernels in decode steps, in graphs or not.", Usage.launches),
    Series("specc_forwards", "Forwards of target and draft in decode steps, in graphs or not.", Usage.forwards),
    Series("specc_graph_replays", "CUDA graphs replayed.", lambda usage: usage.engine.replays.replayed),
    Series(
        "specc_moved_segments",
        "Segments launched kernel by kernel, because a result that their graph reads had moved.",
        lambda usage: dict(usage.engine.replays.moved),
        "segment",
    ),
    Series(
        "specc_eager_steps", "Decode steps launched kernel by kernel, for lack of any CUDA graph.", Usage.eager_steps
    ),
    Series("specc_request_rows", "Batch rows of decode steps that had a request.", Usage.rows),
    Series("specc_padding_rows", "Batch rows of decode steps that only filled a bucket.", Usage.padding_rows),
    Series(
        "specc_health_bits", "Health words, of requests after prefills and steps, with this bit set.", _health, "bit"
    ),
    Series("specc_busy_seconds", "Time spent launching and waiting.", _seconds, "phase"),
)

GAUGES = (
    Series("specc_running_requests", "Requests in the batch.", lambda usage: len(usage.engine.scheduler.running)),
    Series("specc_waiting_requests", "Requests in the queue.", lambda usage: len(usage.engine.scheduler.waiting)),
    Series(
        "specc_free_pages",
        "Pages of the KV pools that nobody holds, the prefix cache neither.",
        lambda usage: usage.engine.allocator.free_pages,
    ),
    Series(
        "specc_expected_tokens_per_second",
        "Tokens of all requests that the policy expects of the shape it chose last; absent where it has no times.",
        _expected,
    ),
)
