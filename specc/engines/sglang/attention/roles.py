"""The attention backend of each role in a worker of SGLang: who runs the draft's steps, verify and extend.

A role has a backend, not a server: `--speculative-draft-attention-backend`, `--decode-attention-backend` and
`--speculative-attention-mode` choose each by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .kinds import KNOWN_BACKENDS
from .recurrent import sized

CLASSES = {kind: backend.name for backend in KNOWN_BACKENDS.values() for kind in backend.classes}
"""Class of SGLang -> the name that its command line has for it. FlashAttention has one class for two names."""
BESIDE = "linear_attn_backend"
"""What an object of SGLang's has around attention, of a model that has recurrent layers as well."""
TWO_POOLS = "use_sliding_window_kv_pool"
"""What a backend looks up slots of a second pool by, and finds out when it is made."""


@dataclass(frozen=True)
class Roles:
    """The backend objects of a worker by role.

    Attributes:
        draft: those of the draft's S - 1 forwards; of an assistant one for all of its S.
        container: the object that holds them, which prepares them together; None of one for all, and without any.
        verify: that of the target's forward over the nodes.
        extend: that of the draft's forward over the accepted path; None where there is none.
        further: those of the draft's other modules over it, of a draft that has a module for each step.
        block: that of the draft's one forward, of a draft that fills in blocks.
        states: of a target that keeps a recurrent state the object around `verify` that runs such layers as well.

    """

    draft: Sequence[Any]
    container: Any
    verify: Any
    extend: Any = None
    further: Sequence[Any] = ()
    block: Any = None
    states: Any = None

    def named(self) -> dict[str, str]:
        """The backend's name by role: those that there are."""
        found = {"verify": self.verify, "extend": self.extend, "draft": next(iter(self.draft), self.block)}
        return {role: name_of(backend) for role, backend in found.items() if backend is not None}

    def sized(self, steps: int, topk: int, nodes: int) -> Roles:
        """The same backends for steps of another shape than the server's, which is not smaller in anything.

        They are copies that share all memory and know the sizes of the shape, S, K and N.
        """
        sizes = {
            "topk": topk,
            "speculative_num_steps": steps,
            "speculative_num_draft_tokens": nodes,
            "num_draft_tokens": nodes,
        }
        forwards = steps if self.container is None else max(steps - 1, 0)
        draft = [_resized(backend, sizes) for backend in self.draft[:forwards]]
        container = _resized(self.container, sizes) if draft and self.container is not None else None
        if container is not None:
            container.attn_backends = draft
        extend = None if self.extend is None else _resized(self.extend, sizes)
        block = None if self.block is None or not steps else _resized(self.block, {})
        verify = _resized(self.verify, sizes)
        made = replace(self, draft=draft, container=container, verify=verify, extend=extend, block=block)
        return made.with_states(nodes)

    def with_states(self, nodes: int) -> Roles:
        """The same with states of so many nodes of each request, of which the server has no fewer."""
        return self if self.states is None else replace(self, states=sized(self.states, nodes))


def roles_of(worker: Any) -> Roles:
    """The roles of a worker, with its backends in place."""
    of_target = worker.target_worker.model_runner.attn_backend
    verify = _plain(of_target, "verify")
    own = worker.kind.backends(worker.draft_worker)
    draft = [_plain(backend, "decode") for backend in own.get("draft", ())]
    return Roles(
        draft=[_reading(backend, worker) for backend in draft] if worker.kind.borrows else draft,
        container=own.get("container"),
        verify=verify,
        extend=_plain(own.get("extend"), "extend"),
        further=[_plain(backend, "extend") for backend in own.get("further", ())],
        block=_plain(own.get("block"), "verify"),
        states=of_target if hasattr(of_target, BESIDE) else None,
    )


def name_of(backend: Any) -> str:
    """The name of a backend object on SGLang's command line; the class's own where it has none here."""
    kind = type(backend).__name__
    if kind == "FlashAttentionBackend":
        return f"fa{backend.fa_impl_ver}"
    return CLASSES.get(kind, kind)


def _reading(backend: Any, worker: Any) -> Any:
    """A copy of an assistant's backend that reads the target's pools; SGLang makes it for one of 64 slots."""
    reading, of_target = copy.copy(backend), worker.target_worker.model_runner.attn_backend
    reading.token_to_kv_pool = worker.draft_worker.kv_context.target_token_to_kv_pool
    if hasattr(backend, TWO_POOLS):
        setattr(reading, TWO_POOLS, getattr(_plain(of_target, "decode"), TWO_POOLS, False))
    return reading


def _resized(backend: Any, sizes: dict[str, int]) -> Any:
    """A copy of a backend, with those of the sizes that it knows."""
    resized = copy.copy(backend)
    vars(resized).update({name: size for name, size in sizes.items() if name in vars(backend)})
    return resized


def _plain(backend: Any, role: str) -> Any:
    """The backend that runs a role over keys and values; None for none.

    It is taken out of one that has another for prefill than for decode, and of one for recurrent layers as well.
    """
    if hasattr(backend, BESIDE):
        return _plain(backend.full_attn_backend, role)
    if type(backend).__name__ != "HybridAttnBackend":
        return backend
    decodes = role == "decode" or (role == "verify" and backend.spec_attn_is_decode)
    return _plain(backend.decode_backend if decodes else backend.prefill_backend, role)
