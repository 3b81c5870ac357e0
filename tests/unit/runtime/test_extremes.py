"""Rows that no model should say, and parameters at their bounds: every token is one that may be, of every mode."""

from __future__ import annotations

import pytest
from fakes import extremes

from specc.runtime.backends.cpu import ReferenceBackend


@pytest.mark.parametrize("mode", extremes.MODES)
def test_only_what_may_be(mode: str) -> None:
    """In one batch, over several steps; where nothing may be the health word says so."""
    crowd = extremes.crowd(mode)
    texts = extremes.play(extremes.build(mode, len(crowd)).plan, ReferenceBackend(), crowd)
    assert len({tuple(text) for text in texts}) > len(extremes.SAMPLINGS)
