"""Requests without room, in graphs and not: the table lies amid poison, of which nothing may be read or written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fakes.toys import ALONE, Toy

from .conftest import Built
from .room import run_out


@pytest.mark.parametrize("capture", [True, "segments", False])
@pytest.mark.parametrize("toy", ALONE, ids=lambda toy: toy.name)
def test_a_request_without_room_is_left_alone(
    toy: Toy, capture: bool | str, build: Callable[..., Built], arch: str, device: torch.device
) -> None:
    run_out(build(toy.text, (arch,)).load_module(), device, seed=len(toy.name), capture=capture)
