"""Capture and replay == eager launches == the CPU reference, over many steps and changing batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fakes.toys import TOYS, TREES

from .conftest import Built
from .serving import Serving, Variant


@pytest.fixture(params=TOYS, ids=lambda program: program.name)
def toy(request: pytest.FixtureRequest, build: Callable[..., Built], arch: str) -> Built:
    """A toy program for this GPU."""
    return build(request.param.text, (arch,))


def variants(toy: Built, device: torch.device) -> dict[str, Variant]:
    """The reference, and the two ways to run on a GPU."""
    package = toy.load_module()
    return {
        "cpu": Variant(package, "cpu"),
        "eager": Variant(package, device, capture=False),
        "captured": Variant(package, device, capture=True),
    }


def test_replay_equals_eager_equals_the_reference(toy: Built, device: torch.device) -> None:
    serving = Serving(variants(toy, device), seed=1)
    serving.run(40)
    assert sum(count * times for count, times in serving.accepted.items()) > 1.5 * serving.accepted.total()
    assert len(serving.sizes) > 3


def test_a_padded_eager_step_equals_a_replay(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    both = {
        "captured": Variant(package, device, capture=True),
        "padded": Variant(package, device, capture=False, padded=True),
    }
    Serving(both, seed=2).run(20)


def test_a_hundred_replays(toy: Built, device: torch.device) -> None:
    """Batches change in size, order and members from replay to replay; requests come and go."""
    everything = variants(toy, device)
    del everything["eager"]
    serving = Serving(everything, seed=3)
    serving.run(100)
    assert set(serving.sizes) == set(range(1, serving.largest + 1))


def test_capture_is_the_default_for_capturable_forwards(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    both = {
        "default": Variant(package, device),
        "captured": Variant(package, device, capture=True),
    }
    Serving(both, seed=4).run(5)


def test_a_table_that_moves_is_refused(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    variant = Variant(package, device, capture=True)
    variant.prefill([1], [[3, 4]])
    variant.table.set_(variant.table.clone())
    with pytest.raises(package.BindError, match="moved"):
        variant.decode([1], [2])


@pytest.mark.parametrize("capture", [True, False])
def test_kv_buffers_that_move_are_refused(
    capture: bool, build: Callable[..., Built], arch: str, device: torch.device
) -> None:
    package = build(TREES[0].text, (arch,)).load_module()
    variant = Variant(package, device, capture=capture)
    variant.prefill([1], [[3, 4]])
    variant.decode([1], [2])
    buffer = variant.engine.kv["target"][1]
    buffer.set_(buffer.clone())
    with pytest.raises(package.BindError, match="moved"):
        variant.decode([1], [2])


def test_an_idle_step_of_padding_rows_changes_nothing(toy: Built, device: torch.device) -> None:
    package = toy.load_module()
    variant = Variant(package, device, capture=True)
    variant.prefill([2, 5], [[1, 2, 3], [7]])
    before = variant.carried([2, 5])
    result = variant.step.decode(package.Batch([], []), at_least=1)
    assert {len(values) for values in result.outputs.values()} == {0}
    after = variant.carried([2, 5])
    assert all(torch.equal(after[name], values) for name, values in before.items())
