"""Stand-ins of recurrent layers do what SGLang's own kernels do, which are interpreted, and what float64 does."""

from __future__ import annotations

import json

import pytest
from sglang_files import ON_GPU, printed

MOVED = {"copy of states", "copy of windows", "copy for prefixes"}
"""What computes nothing."""


@pytest.mark.skipif(ON_GPU, reason="kernels are SGLang's own there")
def test_stand_ins_are_right() -> None:
    said = printed("real_states.py")
    apart = json.loads(said[said.rindex("{") :])
    assert {name: far for name, far in apart.items() if far > (0 if name in MOVED else 1e-5)} == {}
    assert apart.keys() > MOVED
