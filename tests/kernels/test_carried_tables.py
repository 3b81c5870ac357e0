"""Carried fields in tables of the engine's: integers of other widths, and rows that are a part of longer ones."""

from dataclasses import replace

import pytest
import torch
from cluster_cases import TypedBuilder, carry, check_module, small_module
from kernel_launcher import Launcher

STEPS = 3
ROWS = torch.tensor([3, 0, 5, 2])


@pytest.mark.parametrize("kept", ["i32", "i64"])
@pytest.mark.parametrize("used", ["i32", "i64"])
def test_what_is_stored_is_what_the_table_has(launcher: Launcher, kept: str, used: str) -> None:
    """Loads and stores of a scalar and of a row of drafts; nothing between the rows is written."""
    module = small_module(K=1, S=STEPS)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    for name, shape in {"bonus": (), "drafts": ("S",)}.items():
        carry(module, name, kept, *shape)
        module.carries[name] = replace(module.carries[name], table="program")
        with b.phase("prepare"):
            loaded = b("carry.load", rows, names=(f"{name}_kept",), field=name)
            module.outputs[name] = b("carry.convert", loaded, names=(name,), dtype=used)
        with b.phase("extend"):
            new = b.given(f"new_{name}", used, *shape)
            b.many("carry.store", rows, b("carry.convert", new, names=("written",), dtype=kept), field=name)
    most = 1 << (40 if kept == used == "i64" else 20)
    drafts = torch.randint(0, most, (len(ROWS), STEPS), generator=torch.Generator().manual_seed(1))
    drawn = {"new_bonus": drafts[:, 0], "new_drafts": drafts}
    given = {name: value.to(getattr(torch, f"int{used[1:]}")) for name, value in drawn.items()}
    check_module(launcher, module, torch.Generator().manual_seed(0), {"req_pool_indices": ROWS, **given})
