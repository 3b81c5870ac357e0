"""What a launch costs the host, by a clock that is made here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specc.lab.measure.host import call_us
from specc.lab.measure.results.ratios import Spread
from specc.lab.measure.results.records import HostCost, Measurement
from specc.lab.measure.results.table import tables
from specc.lab.measure.timing import WARM_UPS


class Machine:
    """A host whose calls take as long as a test says, and notes of what it did."""

    def __init__(self) -> None:
        self.now, self.done = 0, list[str]()

    def call(self, name: str, *nanoseconds: int) -> Callable[[], None]:
        """A call that takes so long, the last of the times from then on."""
        times = list(nanoseconds)

        def run() -> None:
            self.done.append(name)
            self.now += times.pop(0) if len(times) > 1 else times[0]

        return run


def test_the_call_alone_is_timed_behind_work_that_is_not_done() -> None:
    machine = Machine()
    idle, busy = machine.call("idle", 900_000), machine.call("busy", 40_000)
    warm_ups = [500_000] * WARM_UPS
    call = machine.call("call", *warm_ups, 6_000, 7_000, 9_000)
    spread = call_us(call, busy, idle, samples=3, clock=lambda: machine.now)
    assert spread == Spread.over([6.0, 7.0, 9.0])
    assert machine.done == ["idle", "busy", "call"] * (WARM_UPS + 3) + ["idle"]


@pytest.mark.parametrize("host", [(), (HostCost(8, Spread(6.1, 6.0, 6.4)), HostCost(1024, Spread(80, 79, 90.5)))])
def test_the_table_has_a_line_for_each_number_of_nodes(host: tuple[HostCost, ...]) -> None:
    from rich.console import Console

    console = Console(width=80, highlight=False)
    with console.capture() as captured:
        for part in tables(Measurement("toy", "EAGLE", 2, "Some GPU", "sm_90", {}, (), host)):
            console.print(part)
    output = captured.get()
    assert ("launch of a graph" in output) == bool(host)
    if host:
        lines = [line.split() for line in output.splitlines()[-2:]]
        assert lines == [["8", "6.10", "(6.00..6.40)"], ["1,024", "80.00", "(79.00..90.50)"]]
