"""What a step hands back: views of the output buffers, and their copy on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..semantics.convention import DTYPES
from .health import faults
from .outputs import Attribute, Outputs

NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""What plans call torch's dtypes."""
SPAN_LIMIT = 1 << 20
"""Outputs that lie within this many bytes of one allocation come to the host in one copy."""


@dataclass(frozen=True)
class Score:
    """What a program says of an emitted token, where the config asks for `logprobs`.

    logprob: its log-probability; -inf for one that has none. best: the most probable tokens there with theirs, the most
    probable first, as many as the config asks for.
    """

    logprob: float
    best: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class _Lists(Outputs):
    """Outputs as Python lists, one entry per request."""

    health = Attribute[list[int]]()

    def faults(self, request: int) -> tuple[str, ...]:
        """What the health word of request `request` says went wrong, by name; see `health.FAULTS`."""
        return faults(self.health[request])


@dataclass(frozen=True)
class _OnHost(_Lists):
    """Those of a call that emits tokens."""

    bonus = Attribute[list[int]]()


@dataclass(frozen=True)
class HostResult(_OnHost):
    """The outputs of a decode step as Python lists, one entry per request; those of `StepResult`.

    Whatever the program does not hand out raises AttributeError.
    """

    predict = Attribute[list[list[int]]]()
    accept_lens = Attribute[list[int]]()
    new_seq_lens = Attribute[list[int]]()
    expected_tokens = Attribute[list[list[float]]]()
    accept_index = Attribute[list[list[int]]]()
    hidden_states = Attribute[list[list[list[float]]]]()
    logprobs = Attribute[list[list[float]]]()
    best_tokens = Attribute[list[list[list[int]]]]()
    best_logprobs = Attribute[list[list[list[float]]]]()
    routed_experts = Attribute[list[list[list[list[int]]]]]()
    indexer_topk = Attribute[list[list[list[list[int]]]]]()

    def tokens(self, request: int) -> list[int]:
        """Tokens that request `request` emitted; the last one is the bonus."""
        return self.predict[request][: self.accept_lens[request]]

    def scores(self, request: int) -> list[Score]:
        """What is said of each of `tokens`; nothing where the config does not ask for log-probabilities."""
        if "logprobs" not in self.outputs:
            return []
        return _scores(self.logprobs[request], _best(self.outputs, request), self.accept_lens[request])


@dataclass(frozen=True)
class HostPrefill(_OnHost):
    """The outputs of a prefill as Python lists, one entry per request; those of `PrefillResult`.

    Whatever the program does not hand out raises AttributeError.
    """

    logprobs = Attribute[list[float]]()
    best_tokens = Attribute[list[list[int]]]()
    best_logprobs = Attribute[list[list[float]]]()

    def tokens(self, request: int) -> list[int]:
        """The first token of request `request`."""
        return [self.bonus[request]]

    def scores(self, request: int) -> list[Score]:
        """What is said of the first token; nothing where the config does not ask for log-probabilities."""
        if "logprobs" not in self.outputs:
            return []
        return _scores([self.logprobs[request]], [[values] for values in _best(self.outputs, request)], 1)


@dataclass(frozen=True)
class HostProposal(_Lists):
    """The outputs of `propose` as Python lists, one entry per request; those of `ProposeResult`."""

    drafts = Attribute[list[list[int]]]()


HostT = TypeVar("HostT", HostResult, HostPrefill, HostProposal)


@dataclass(frozen=True, repr=False)
class _Tensors(Outputs):
    """Outputs as tensors on the program's device."""

    health = Attribute[Tensor]()

    def __repr__(self) -> str:
        """Names, dtypes and shapes; no value is read."""
        listed = (f"{name} {NAMES[tensor.dtype]}{list(tensor.shape)}" for name, tensor in self.outputs.items())
        return f"<{type(self).__name__} {', '.join(listed)}>"


@dataclass(frozen=True, repr=False)
class _OnDevice(_Tensors):
    """Those of a call that emits tokens."""

    bonus = Attribute[Tensor]()
    logprobs = Attribute[Tensor]()
    best_tokens = Attribute[Tensor]()
    best_logprobs = Attribute[Tensor]()


@dataclass(frozen=True, repr=False)
class StepResult(_OnDevice):
    """The outputs of a decode step for b requests, on the program's device. Valid until the next call of the step.

    `predict`, `accept_lens`, `new_seq_lens`, `bonus`, `health`, and those that the config asks for; whatever the
    program does not hand out raises AttributeError. A is the most tokens that a step emits.
    """

    predict = Attribute[Tensor]()
    accept_lens = Attribute[Tensor]()
    new_seq_lens = Attribute[Tensor]()
    expected_tokens = Attribute[Tensor]()
    accept_index = Attribute[Tensor]()
    hidden_states = Attribute[Tensor]()
    routed_experts = Attribute[Tensor]()
    indexer_topk = Attribute[Tensor]()

    def start_copy(self) -> HostCopy[HostResult]:
        """Queue the copy to the host behind the step and return at once, so that another step can follow."""
        return HostCopy(self.outputs, HostResult)

    def to_host(self) -> HostResult:
        """The outputs as Python lists, in one device-to-host copy; waits for the step."""
        return self.start_copy().wait()


@dataclass(frozen=True, repr=False)
class PrefillResult(_OnDevice):
    """The outputs of a prefill for b requests, on the program's device. Valid until the next call of the step.

    `bonus`, the first token of every request, `health`, and the log-probabilities that the config asks for; whatever
    the program does not hand out raises AttributeError.
    """

    def start_copy(self) -> HostCopy[HostPrefill]:
        """Queue the copy to the host behind the prefill and return at once, so that a step can follow."""
        return HostCopy(self.outputs, HostPrefill)

    def to_host(self) -> HostPrefill:
        """The outputs as Python lists, in one device-to-host copy; waits for the prefill."""
        return self.start_copy().wait()


@dataclass(frozen=True, repr=False)
class ProposeResult(_Tensors):
    """The outputs of the second half of a rotated step, on the program's device. Valid until the next `commit`.

    `drafts`, which the target is to read behind the bonus token, and `health`, of the draft's forwards.
    """

    drafts = Attribute[Tensor]()

    def start_copy(self) -> HostCopy[HostProposal]:
        """Queue the copy to the host behind the step and return at once."""
        return HostCopy(self.outputs, HostProposal)

    def to_host(self) -> HostProposal:
        """The outputs as Python lists, in one device-to-host copy; waits for the step."""
        return self.start_copy().wait()


class HostCopy(Generic[HostT]):
    """A copy of outputs on its way to the host."""

    def __init__(self, outputs: Mapping[str, Tensor], kind: type[HostT]) -> None:
        """Queue the copy on the current stream; it arrives as a result of that kind."""
        self._outputs = _copy_span(outputs) or {name: _to_host(t) for name, t in outputs.items()}
        self._kind = kind
        self._event: torch.cuda.Event | None = None
        devices = {tensor.device for tensor in outputs.values()}
        if any(device.type == "cuda" for device in devices):
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(devices.pop()))

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The outputs by name on the host, which are there only after `wait`, or whatever else waits for the stream."""
        return self._outputs

    def wait(self) -> HostT:
        """Wait until the copy has arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._kind({name: tensor.tolist() for name, tensor in self._outputs.items()})


def _best(outputs: Mapping[str, list[Any]], request: int) -> list[list[Any]]:
    """The most probable tokens of a request and their log-probabilities; nothing where the config asks for none."""
    return [outputs[name][request] for name in ("best_tokens", "best_logprobs") if name in outputs]


def _scores(logprobs: list[float], best: list[list[Any]], count: int) -> list[Score]:
    """Of the first `count` tokens; `best` has, token by token, the most probable ones, then their log-probabilities."""
    pairs = [tuple(zip(*row, strict=True)) for row in zip(*best, strict=True)] or [()] * len(logprobs)
    return [Score(*pair) for pair in zip(logprobs[:count], pairs[:count], strict=True)]


def _to_host(tensor: Tensor) -> Tensor:
    host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def _copy_span(outputs: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """One copy of the bytes from the first output to the last; None when they do not lie close together."""
    tensors = [tensor for tensor in outputs.values() if tensor.numel()]
    if not tensors or len({tensor.untyped_storage().data_ptr() for tensor in tensors}) != 1:
        return None
    low = min(_start(tensor) for tensor in tensors)
    high = max(_start(tensor) + _extent(tensor) for tensor in tensors)
    if high - low > SPAN_LIMIT:
        return None
    raw = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
    host = _to_host(raw.set_(tensors[0].untyped_storage(), low, (high - low,), (1,)))
    return {name: _cut(host, tensor, low) for name, tensor in outputs.items()}


def _cut(host: Tensor, tensor: Tensor, low: int) -> Tensor:
    if not tensor.numel():
        return torch.empty_like(tensor, device="cpu")
    start = _start(tensor) - low
    piece = host[start : start + _extent(tensor)]
    return piece.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _start(tensor: Tensor) -> int:
    """Byte offset of a tensor in its storage."""
    return int(tensor.storage_offset()) * tensor.element_size()


def _extent(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
