"""What an engine has to follow, by algorithm: said here from docs/semantics.md and docs/algorithms.md."""

from __future__ import annotations

from typing import Any

import pytest
from programs import planned

from specc.runtime.plan.plan import Serving

STEPS = 3
ACCEPTED = STEPS + 1
TREE: dict[str, Any] = {"topk": 2, "num_draft_tokens": 7}


@pytest.mark.parametrize(
    ("algorithm", "keys", "serving"),
    [
        ("STANDALONE", {}, Serving(ACCEPTED + 1, lookahead=0, settled=True, reads_hidden=False)),
        (
            "STANDALONE",
            {"draft_positions": "shifted"},
            Serving(ACCEPTED, lookahead=1, settled=True, reads_hidden=False),
        ),
        ("STANDALONE", TREE, Serving(7, lookahead=0, settled=True, reads_hidden=False, mask_mode="qlen")),
        ("EAGLE", {}, Serving(ACCEPTED, lookahead=1, settled=True, reads_hidden=True)),
        ("EAGLE", TREE | {"mask": "bitpacked"}, Serving(7, 1, settled=True, reads_hidden=True, mask_mode="bitpacked")),
        ("EAGLE", TREE | {"mask": "slots"}, Serving(7, 1, settled=True, reads_hidden=True, mask_mode="slots")),
        ("EAGLE3", {}, Serving(ACCEPTED, lookahead=1, settled=True, reads_hidden=True)),
        ("FROZEN_KV_MTP", {}, Serving(ACCEPTED, lookahead=0, settled=True, reads_hidden=False)),
        ("MULTI_LAYER_EAGLE", {}, Serving(ACCEPTED, lookahead=STEPS, settled=False, reads_hidden=False)),
        ("DFLASH", {}, Serving(ACCEPTED, lookahead=0, settled=True, reads_hidden=False)),
        ("NGRAM", {}, Serving(ACCEPTED, lookahead=0, settled=True, reads_hidden=False)),
    ],
)
def test_what_an_engine_has_to_follow(algorithm: str, keys: dict[str, Any], serving: Serving) -> None:
    assert planned(algorithm, num_steps=STEPS, **keys)[0].serving == serving
