"""SGLang's contract of attention backends, with backends that keep room for a size of batch as its own do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.engines.sglang.attention.prepare.contract import Contract
from specc.engines.sglang.attention.roles import Roles
from specc.engines.sglang.attention.step import attention_of
from specc.engines.sglang.attention.step_tables import Sizes, Tables
from specc.engines.sglang.kinds.eagle_heads import HEADS
from specc.runtime.plan.shape import Shape

STEPS, NODES = 3, 4
SIZES = Sizes(8, STEPS, 1, NODES, 64, context=512)


class _Recorded:
    """What all of them do: note the calls, and what a graph of SGLang's reads."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.calls = step, list[str]()
        self.forward_metadata: Any = "of a prefill"

    def init_forward_metadata_in_graph(self, batch: Any) -> None:
        self.calls.append("in")

    def keys(self, batch: Any, more: int) -> Tensor:
        return batch.seq_lens + {"draft": more, "verify": NODES, "extend": 0}[batch.mode]


class TRTLLMMLABackend(_Recorded):
    """Makes buffers anew for a size, which replace those of the size, and adds no step."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(step)
        self.decode_cuda_graph_metadata: dict[Any, Any] = {}
        self.forward_decode_metadata: Any = "of a prefill"

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool = False) -> None:
        self.calls.append("capture" if in_capture else "out")
        if in_capture:
            self.forward_decode_metadata = SimpleNamespace(lengths=torch.full((batch.batch_size,), -1))
            self.decode_cuda_graph_metadata[batch.batch_size] = self.forward_decode_metadata
        self.decode_cuda_graph_metadata[batch.batch_size].lengths.copy_(self.keys(batch, 0))

    def read(self) -> list[int]:
        return self.forward_decode_metadata.lengths.tolist()


class TRTLLMHAAttnBackend(_Recorded):
    """Has views of one buffer, filled in the graph, a table for each mode, and knows its step."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(step)
        self.lengths = torch.full((SIZES.largest,), -1)
        self.tables = [{"lengths": self.lengths}, {"lengths": self.lengths}, {"lengths": self.lengths}]
        self.decode_cuda_graph_metadata, self.target_verify_metadata, self.draft_extend_metadata = self.tables

    def table(self, batch: Any) -> dict[Any, Any]:
        return self.tables[("draft", "verify", "extend").index(batch.mode)]

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool = False) -> None:
        self.calls.append("capture" if in_capture else "out")
        if in_capture:
            self.table(batch)[batch.batch_size] = SimpleNamespace(lengths=self.lengths[: batch.batch_size])
        self.forward_metadata = self.table(batch)[batch.batch_size]

    def init_forward_metadata_in_graph(self, batch: Any) -> None:
        super().init_forward_metadata_in_graph(batch)
        self.table(batch)[batch.batch_size].lengths.copy_(self.keys(batch, self.step + 1))

    def read(self) -> list[int]:
        return self.forward_metadata.lengths.tolist()


class QwenSparseAttnBackend(TRTLLMMLABackend):
    """Makes buffers anew for a size and a mode, in one table, of which it has two."""

    def init_forward_metadata_out_graph(self, batch: Any, in_capture: bool = False) -> None:
        self.calls.append("capture" if in_capture else "out")
        key = batch.mode, batch.batch_size
        if in_capture:
            self.decode_cuda_graph_metadata[key] = SimpleNamespace(lengths=torch.full(key[1:], -1))
        self.forward_metadata = self.decode_cuda_graph_metadata[key]
        self.forward_metadata.lengths.copy_(self.keys(batch, 0))

    def read(self) -> list[int]:
        return self.forward_metadata.lengths.tolist()


def batch(mode: str, lengths: list[int]) -> Any:
    rows, info = torch.tensor(lengths), SimpleNamespace()
    return SimpleNamespace(mode=mode, batch_size=len(rows), seq_lens=rows, spec_info=info)


def run(attention: Contract, lengths: list[int]) -> dict[str, list[int]]:
    """The keys that layers read in each forward of a step."""
    keys = {}
    for step in range(STEPS - 1):
        given = batch("draft", lengths)
        keys[f"draft {step}"] = attention.draft(step, given).read()
    keys["verify"] = attention.target(batch("verify", lengths), NODES, None, None).read()
    given = batch("extend", [length + STEPS + 1 for length in lengths])
    keys["extend"] = attention.extend(given, torch.tensor(lengths), STEPS + 1).read()
    assert given.extend_seq_lens.tolist() == given.spec_info.extend_seq_lens_tensor.tolist() == [4] * len(lengths)
    return keys


def wanted(lengths: list[int]) -> dict[str, list[int]]:
    more = {f"draft {step}": step + 1 for step in range(STEPS - 1)} | {"verify": NODES, "extend": STEPS + 1}
    return {forward: [length + keys for length in lengths] for forward, keys in more.items()}


@pytest.mark.parametrize("kind", [TRTLLMMLABackend, TRTLLMHAAttnBackend, QwenSparseAttnBackend])
def test_forwards_read_their_keys_and_sglangs_room_stays(kind: type[Any]) -> None:
    backends = [kind(0), kind(1), kind(), kind()]
    modes = ("draft", "draft", "verify", "extend")
    captured = []
    for backend, mode in zip(backends, modes, strict=True):  # SGLang has captured a size that programs have, too
        backend.init_forward_metadata_out_graph(batch(mode, [0, 0]), in_capture=True)
        captured.append({name: dict(of) for name, of in vars(backend).items() if isinstance(of, dict)})
        backend.calls.clear()
    attention = Contract(Roles(backends[:2], None, *backends[2:]), Tables(torch.zeros(9, 600).int(), SIZES))
    sizes: list[list[int]] = [[7, 0, 300], [7, 0, 300], [5, 9], [1, 2, 3], [6, 1]]
    for place, lengths in enumerate(sizes):
        assert run(attention, lengths) == wanted(lengths)
        for backend, before in zip(backends, captured, strict=True):
            first = len(lengths) not in {len(earlier) for earlier in sizes[:place]}
            assert backend.calls == ["capture"] * first + ["out", "in"]
            backend.calls.clear()
            backend.forward_metadata = backend.forward_decode_metadata = "of a prefill"
            for name, of in before.items():
                now = getattr(backend, name)
                assert now.keys() == of.keys() and all(now[key] is of[key] for key in of)


def test_trees_are_refused() -> None:
    sizes = Sizes(8, STEPS, 4, 8, 64, context=512)
    backend = TRTLLMMLABackend()
    with pytest.raises(ValueError, match="trtllm_mla serves chains"):
        Contract(Roles([backend, backend], None, backend, backend), Tables(torch.zeros(9, 600).int(), sizes))


@pytest.mark.parametrize(("captured", "kind"), [(True, "Contract"), (False, "Eager")])
def test_servers_without_graphs_prepare_each_batch(captured: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.engines.sglang.attention.step.need", lambda attention: None)  # SGLang is not here
    context = SimpleNamespace(context_len=512)
    runner = SimpleNamespace(attn_backend=TRTLLMMLABackend(), model_config=context, token_to_kv_pool=None)
    drafter = SimpleNamespace(
        draft_attn_backend=SimpleNamespace(attn_backends=[TRTLLMMLABackend(), TRTLLMMLABackend()]),
        draft_extend_attn_backend=TRTLLMMLABackend(),
    )
    worker = SimpleNamespace(
        kind=HEADS,
        draft_worker=drafter,
        target_worker=SimpleNamespace(model_runner=runner),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(9, 600).int()),
    )
    plan = SimpleNamespace(buckets=(2, 8), kv=SimpleNamespace(page_size=64))
    (attention,) = attention_of(worker, {Shape(STEPS, 1, NODES): plan}, captured=captured).values()
    assert {type(backend).__name__ for backend in attention._backends} == {kind}
    assert not attention.plans
