"""The attention backend of each role in a worker of SGLang: who runs the draft's steps, verify and extend.

A role has a backend, not a server: `--speculative-draft-attention-backend`, `--decode-attention-backend` and
`--speculative-attention-mode` choose each by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..parts.runners import fills_blocks, modules_of, reads_target
from .kinds import KNOWN_BACKENDS

CLASSES = {kind: backend.name for backend in KNOWN_BACKENDS.values() for kind in backend.classes}
"""Class of SGLang -> the name that its command line has for it. FlashAttention has one class for two names."""
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

    """

    draft: Sequence[Any]
    container: Any
    verify: Any
    extend: Any
    further: Sequence[Any] = ()
    block: Any = None

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
        return replace(self, draft=draft, container=container, verify=_resized(self.verify, sizes), extend=extend)


def roles_of(worker: Any) -> Roles:
    """The roles of a worker, with its backends in place."""
    drafter, verify = worker.draft_worker, _plain(worker.target_worker.model_runner.attn_backend, "verify")
    if drafter is None:
        return Roles([], None, verify, None)
    if modules := modules_of(worker):
        given = zip(drafter.draft_extend_attn_backend_list, modules, strict=True)
        extend, *further = (_plain(backend or runner.attn_backend, "extend") for backend, runner in given)
        return Roles([], None, verify, extend, further)
    if fills_blocks(worker):
        return Roles([], None, verify, None, block=_plain(drafter.draft_runner.attn_backend, "verify"))
    container = drafter.draft_attn_backend
    if reads_target(worker):
        return Roles([_reading(_plain(container, "decode"), worker)], None, verify, None)
    return Roles(
        draft=[] if container is None else [_plain(backend, "decode") for backend in container.attn_backends],
        container=container,
        verify=verify,
        extend=_plain(drafter.draft_extend_attn_backend or drafter.draft_runner.attn_backend, "extend"),
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
    """The backend that runs a role, out of one that has another for prefill than for decode."""
    if type(backend).__name__ != "HybridAttnBackend":
        return backend
    decodes = role == "decode" or (role == "verify" and backend.spec_attn_is_decode)
    return _plain(backend.decode_backend if decodes else backend.prefill_backend, role)
