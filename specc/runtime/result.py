"""What a step hands back: views of the output buffers, and their copy on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .health import faults

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
class HostResult:
    """The outputs of a step as Python lists, one entry per request."""

    outputs: Mapping[str, list[Any]]

    def __getattr__(self, name: str) -> list[Any]:
        """Output `name`: `predict`, `accept_lens`, `new_seq_lens`, `bonus`, `health` or one the config asks for."""
        return _output(self.__dict__.get("outputs", {}), name)

    def tokens(self, request: int) -> list[int]:
        """Tokens that request `request` emitted; the last one is the bonus. After a prefill: the first token."""
        if "predict" not in self.outputs:
            return [self.bonus[request]]
        return self.predict[request][: self.accept_lens[request]]

    def scores(self, request: int) -> list[Score]:
        """What is said of each of `tokens`; nothing where the config does not ask for log-probabilities."""
        if "logprobs" not in self.outputs:
            return []
        names = ("logprobs", "best_tokens", "best_logprobs")
        logprobs, *best = (self.outputs[name][request] for name in names if name in self.outputs)
        if "predict" not in self.outputs:
            logprobs, best = [logprobs], [[values] for values in best]
        pairs = [tuple(zip(*row, strict=True)) for row in zip(*best, strict=True)] or [()] * len(logprobs)
        count = len(self.tokens(request))
        return [Score(*found) for found in zip(logprobs[:count], pairs[:count], strict=True)]

    def faults(self, request: int) -> tuple[str, ...]:
        """What the health word of request `request` says went wrong, by name; see `health.FAULTS`."""
        return faults(self.health[request])


@dataclass(frozen=True)
class StepResult:
    """The outputs of a step for b requests, on the program's device. Valid until the next call of the step.

    `predict` i32[b, A], `accept_lens` i32[b], `new_seq_lens` i64[b], `bonus` i32[b], `health` i32[b] and the outputs
    the config asks for; after a prefill only `bonus` and `health`. Others raise AttributeError.
    """

    outputs: Mapping[str, Tensor]

    def __getattr__(self, name: str) -> Tensor:
        """Output `name` as a tensor of b rows."""
        return _output(self.__dict__.get("outputs", {}), name)

    def start_copy(self) -> HostCopy:
        """Queue the copy to the host behind the step and return at once, so that another step can follow."""
        return HostCopy(self.outputs)

    def to_host(self) -> HostResult:
        """The outputs as Python lists, in one device-to-host copy; waits for the step."""
        return self.start_copy().wait()


class HostCopy:
    """A copy on its way to the host."""

    def __init__(self, outputs: Mapping[str, Tensor]) -> None:
        """Queue the copy on the current stream."""
        self._outputs = _copy_span(outputs) or {name: _to_host(t) for name, t in outputs.items()}
        self._event: torch.cuda.Event | None = None
        devices = {tensor.device for tensor in outputs.values()}
        if any(device.type == "cuda" for device in devices):
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(devices.pop()))

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The outputs by name on the host, which are there only after `wait`, or whatever else waits for the stream."""
        return self._outputs

    def wait(self) -> HostResult:
        """Wait until the copy has arrived."""
        if self._event is not None:
            self._event.synchronize()
        return HostResult({name: tensor.tolist() for name, tensor in self._outputs.items()})


def _output(outputs: Mapping[str, Any], name: str) -> Any:
    if name in outputs:
        return outputs[name]
    raise AttributeError(f"no output {name!r}; there are {', '.join(sorted(outputs))}")


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
