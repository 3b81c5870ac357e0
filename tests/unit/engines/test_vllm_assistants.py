"""Programs of FROZEN_KV_MTP as vLLM's decode steps, on stand-ins of its modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.vllm_modules import Gemma4Speculator, MTPSpeculator
from fakes.vllm_server import Server, adapter
from programs import planned
from test_vllm_steps import Serve, serve
from vllm_batches import MANY_BATCHES as BATCHES
from vllm_batches import MANY_PROMPTS as PROMPTS
from vllm_batches import plan_of, run

from specc.runtime.plan.plan import Plan

__all__ = ["serve"]
WIDE, NARROW, VOCAB = 64, 32, 96


def narrow(width: int = NARROW, **keys: Any) -> Plan:
    """A program whose assistant is narrower than its target."""
    draft = {"vocab_size": VOCAB, "hidden_size": width, "target_hidden_size": WIDE}
    target = {"vocab_size": VOCAB, "hidden_size": WIDE}
    sizes = {"page_size": 4, "max_requests": 6, "buckets": [1, 2, 4], "target": target, "draft": draft}
    return planned("FROZEN_KV_MTP", engine="vllm", **sizes, **keys)[0]


def misfits(plan: Plan, server: Server) -> list[str]:
    """What is in the way of a program in a server with an assistant, or with a module."""
    kind = Gemma4Speculator if isinstance(server.runner.speculator, Gemma4Speculator) else MTPSpeculator
    return adapter("server.fit").misfits({plan.shape: plan}, server.config, kind, adapter("runner").SERVED)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_assistant_is_narrower_than_its_target(serve: Serve, steps: int) -> None:
    """Of which vLLM says how wide the rows are that it reads: a program of another width does not fit."""
    server = serve(narrow(num_steps=steps))
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert (server.program.served, server.program.left) == (len(BATCHES), {})
    assert misfits(narrow(num_steps=steps), server) == []
    assert misfits(narrow(16, num_steps=steps), server) == [
        "hidden_size of the draft is 16 in the program, 32 in the server"
    ]


def test_programs_of_heads_and_of_assistants_are_told_apart(serve: Serve) -> None:
    """Both are of the same method."""
    server = serve(plan_of("FROZEN_KV_MTP"))
    assert misfits(plan_of("EAGLE"), server) == [
        "the program is of EAGLE, the server's method is mtp of an assistant"
    ]  # fmt: skip
    other = serve(plan_of("EAGLE"), method="mtp")
    assert misfits(plan_of("FROZEN_KV_MTP"), other)[0] == "the program is of FROZEN_KV_MTP, the server's method is mtp"


def test_attention_is_made_once_a_step(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """All forwards of a step stand at the last place of the text that has keys and values."""
    made, build = list[tuple[list[int], list[int]]](), Gemma4Speculator._build_attn_metadata

    def noted(speculator: Gemma4Speculator, *given: Any, **named: Any) -> Any:
        buffers, count = speculator.input_buffers, named["num_reqs"]
        made.append((buffers.positions[:count].tolist(), buffers.seq_lens[:count].tolist()))
        return build(speculator, *given, **named)

    monkeypatch.setattr(Gemma4Speculator, "_build_attn_metadata", noted)
    server = serve(plan_of("FROZEN_KV_MTP"))
    server.begin(PROMPTS)
    server.decode([2, 0, 5])
    ends = [len(server.text(row)) - 1 for row in (2, 0, 5)]
    assert made == [([end - 1 for end in ends], ends)]
    made.clear()
    hidden = torch.zeros(2, server.plan.models["target"].hidden_size)
    given = {"rows": torch.tensor([3, 0]), "seq_lens": torch.tensor([4, 0]), "capture": "last", "hidden": hidden}
    assist = server.program._bound.target.assist
    assist(step=0, tokens=torch.tensor([5, 0]), positions=torch.tensor([3, -1]), **given)
    assert made == [([3, 0], [4, 1])], "padding, whose text is empty, reads one place"


def test_nothing_of_blocks_is_asked_for(serve: Serve) -> None:
    """An assistant writes nothing: a step of it is served whose text fills its blocks."""
    server = serve(plan_of("FROZEN_KV_MTP"), ahead=0)
    server.begin(PROMPTS)
    for _ in range(3):
        run(server, BATCHES)
        server.settle()
    server.judge()
    assert server.program.left == {}
    assert not torch.equal(server.tables.block_tables[0].gpu, server.tables.block_tables[1].gpu[:, :8]), "two groups"
