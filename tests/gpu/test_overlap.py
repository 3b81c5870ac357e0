"""In the steady state of an engine with overlap nothing makes the host wait but the copy of the step before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from .conftest import EXAMPLES, Built

PROMPTS = ("def main():\n", "import os\nimport sys\n\n", "class Node:\n")
DRAFTS = {
    "standalone-chain": "standalone",
    "eagle-chain": "eagle",
    "eagle-tree": "eagle",
    "eagle3-chain": "eagle3",
    "frozen-kv-chain": "frozen_kv",
    "mtp-chain": "mtp",
    "dflash-chain": "dflash",
    "dspark-chain": "dspark",
    "dflash2-chain": "dflash2",
    "ngram-chain": None,
}
"""Examples, and the directories of their drafts."""
STEPS, NEW = 6, 96


@pytest.fixture
def no_sync() -> Iterator[Callable[[], None]]:
    """Return what makes torch raise from then on when it would wait for the device."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("capture", [None, False])
@pytest.mark.parametrize("name", sorted(DRAFTS))
def test_steps_in_flight_wait_for_nothing(
    name: str,
    capture: bool | None,
    example: Callable[[str], Built],
    no_sync: Callable[[], None],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events waited for are counted: one per step, recorded before the last launch."""
    pytest.importorskip("transformers")
    from specc.lab.engine.engine import Engine
    from specc.lab.engine.models.loading import load_draft, load_target
    from specc.lab.engine.reference import greedy
    from specc.lab.engine.serving.requests.request import StopConditions

    program = example(name).load_module().load(device)
    target = load_target(EXAMPLES / "models" / "target", program.plan, str(device))
    directory = DRAFTS[name]
    draft = None if directory is None else load_draft(EXAMPLES / "models" / directory, program.plan, target)
    engine = Engine(program, target, draft, max_context=256, capture=capture)
    for prompt in PROMPTS:
        engine.add(prompt, StopConditions(NEW))
    engine.step()
    waits: list[torch.cuda.Event] = []
    synchronize = torch.cuda.Event.synchronize
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: (waits.append(event), synchronize(event))[1])
    no_sync()
    for _ in range(STEPS):
        before = engine._flights[-1].copy
        waits.clear()
        assert engine.step() == []
        assert before._event in waits
        assert engine._flights[-1].copy._event not in waits
    torch.cuda.set_sync_debug_mode("default")
    done = [completion for _ in range(256) if engine.has_work for completion in engine.step()]
    assert len(done) == len(PROMPTS)
    for completion in done:
        assert completion.token_ids == greedy(target, completion.prompt_ids, NEW)
