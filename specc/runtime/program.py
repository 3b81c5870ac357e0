"""Loading a program from its package folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from .backends import Backend
from .backends.cpu import ReferenceBackend
from .capabilities.records import RecordedProgram
from .errors import BindError, UnsupportedDeviceError
from .graphs.capture import check_device
from .memory.arena import allocate
from .memory.kv_rows import Parts
from .plan.capabilities import absent, check_held
from .plan.files.manifest import Manifest
from .plan.files.plan_json import load_plans
from .plan.plan import Plan
from .plan.shape import Shape, listed
from .ranks import Collective
from .semantics.convention import Semantics
from .state.carry import Carry
from .step import Step


class Program(
    RecordedProgram,
):
    """A loaded program. It owns no request state: every `bind` allocates its own.

    Attributes:
        manifest: what the wheel holds.
        plans: the program itself by shape, one for each that it was compiled for, the deepest first.
        plan: that of the deepest.
        device: where it runs.

    """

    def __init__(self, plans: Sequence[Plan], manifest: Manifest, device: torch.device, backend: Backend) -> None:
        """Use `load` instead."""
        by_shape = {plan.shape: plan for plan in plans}
        self.plans = {shape: by_shape[shape] for shape in sorted(by_shape, reverse=True)}
        self.plan = next(iter(self.plans.values()))
        self.manifest = manifest
        self.device = device
        self._backend = backend

    if not TYPE_CHECKING:  # checkers see what there is
        __getattr__ = absent

    def __repr__(self) -> str:
        """Name, version with its label, what it decodes, its shapes where there are several, and its device."""
        shapes = f", shapes {listed(self.plans)}" if len(self.plans) > 1 else ""
        return f"<Program {self.manifest.name} {self.version}: {self.plan.summary}{shapes}, on {self.device}>"

    @property
    def version(self) -> str:
        """That of the wheel: specc's, and a label which changes with anything that the wheel holds."""
        return self.manifest.version

    @property
    def buckets(self) -> dict[Shape, tuple[int, ...]]:
        """By shape the batch sizes that it was compiled for, ascending."""
        return {shape: plan.buckets for shape, plan in self.plans.items()}

    def idle_carry(self) -> Carry:
        """The carry of no requests."""
        return Carry.idle(self.plan, self.device)

    def bind(
        self,
        callbacks: object | Mapping[Shape, object],
        req_to_token: Tensor,
        kv_pools: Mapping[str, Sequence[Tensor]] | None = None,
        *,
        state_pools: Parts | None = None,
        tables: Mapping[str, Tensor] | None = None,
        collective: Collective | None = None,
        carry: Mapping[str, Tensor] | None = None,
        capture: bool | Literal["segments"] | None = None,
        nvtx: bool = False,
    ) -> Step:
        """Bind the engine's forwards, its request table i32[p, C] and its KV buffers; allocates the program's memory.

        The result drafts the deepest shape that the program was compiled for; its `at` has the others. It is a
        `RotatedStep` where the engine runs the target (`plan.rotated`). The table may have fewer than the program's P
        rows; requests are then in rows 1..p-1. Forwards of the prefill are needed only by those who call it. Forwards
        that prepare themselves for one shape come as a mapping, an object for each.

        `kv_pools` has the KV buffers T[slots, ...] of `target` and `draft`, layer by layer (keys, then values), needed
        for those that `plan.kv_pools` calls bound; `state_pools` the recurrent states, see `StatePools`; `tables` the
        tensors of `plan.tables()`, by name. All of them must stay where they are as long as the step is used.
        `carry`: by carried field a tensor T[P, ...] in which it lives instead, see `check_carried`. Nothing is cleared.
        `collective`: of a program whose logits are sharded over several ranks, all of them; by default those of
        torch.distributed. The ranks compare what they run, so all of them bind, or none does.
        `capture`: True captures the whole step; "segments" what runs between the forwards, which are called in every
        step; False nothing; None, on CUDA, True when `callbacks.capturable` is true, else "segments". Captures run the
        forwards on padding rows; where these cannot run yet, bind with False and call `Step.capture` later.
        `nvtx`: on CUDA, launch and call every node in an NVTX range.
        Raises CollectiveError when a rank does not come, BindError when one runs another program, a callback is
        missing, tables or buffers do not fit, or capture is asked of a CPU program.
        """
        cuda = self.device.type == "cuda"
        if not isinstance(capture, bool | str | None) or capture not in (True, False, None, "segments"):
            raise BindError(f"capture is True, False, None or 'segments', got {capture!r}")
        if capture:
            check_device(self.device)
        if capture is None:
            capture = cuda and (True if getattr(callbacks, "capturable", False) else "segments")
        if self.plan.ranks > 1:
            collective = _compared(collective, self.plan.ranks, self.manifest.digest, self.device)
        elif collective is not None and collective.size > 1:
            raise BindError(f"a collective of {collective.size} ranks is given, and the program is of one")
        bound: dict[Shape, Step] = {}
        memory = allocate(self.plans.values(), self.device)
        kind = _rotated() if self.plan.rotated else Step
        of_shape = partial(kind, collective=collective, carry=carry, nvtx=nvtx and cuda, memory=memory, shapes=bound)
        place, given = (self._backend, self.device), (req_to_token, kv_pools, tables)
        for shape, forwards in _by_shape(callbacks, self.plans).items():
            bound[shape] = of_shape(self.plans[shape], *place, forwards, *given, state_pools=state_pools)
        step = bound[self.plan.shape]
        if capture:
            step.capture(capture)
        return step


def load(root: Path, device: str | torch.device = "cuda", *, verify: bool = True) -> Program:
    """Load the program in the package folder `root`; compiles nothing.

    Args:
        root: the folder of the generated package.
        device: `cuda`, `cuda:1`, ... or `cpu` for the torch reference backend.
        verify: compare every file with its digest first.

    Raises DamagedWheelError, UnsupportedTorchError, UnsupportedDeviceError, UnsupportedDriverError or PlanError.

    """
    manifest = Manifest.read(root)
    if verify:
        manifest.verify(root)
    manifest.check_torch(torch.__version__)
    plans = [*load_plans(root, manifest).values()]
    check_held(plans, Path(__file__).parent)
    resolved = _resolve(device)
    return Program(plans, manifest, resolved, _backend(plans, manifest, root, resolved))


def _resolve(given: str | torch.device) -> torch.device:
    """The device with its number. UnsupportedDeviceError when torch cannot reach it."""
    if not isinstance(given, str | torch.device):
        raise UnsupportedDeviceError(f"device {given!r} is a {type(given).__name__}, not a name such as 'cuda:0'")
    try:
        device = torch.device(given)
    except RuntimeError as error:
        raise UnsupportedDeviceError(f"device {given!r}: {error}") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise UnsupportedDeviceError(f"device {device} is neither cpu nor cuda")
    if not torch.cuda.is_available():
        raise UnsupportedDeviceError(f"device {device}: torch {torch.__version__} finds no CUDA device")
    if torch.version.hip:
        message = (
            f"device {device}: torch {torch.__version__} drives AMD GPUs; programs load on NVIDIA's and on the CPU"
        )
        raise UnsupportedDeviceError(f"{message}, and their gfx machine code is for inspection")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise UnsupportedDeviceError(f"device {device}: torch finds {count} CUDA device(s)")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _by_shape(callbacks: object | Mapping[Shape, object], shapes: Collection[Shape]) -> Mapping[Shape, object]:
    """The forwards of every shape. BindError where a mapping is of other shapes."""
    if not isinstance(callbacks, Mapping):
        return dict.fromkeys(shapes, callbacks)
    given = cast("Mapping[Shape, object]", callbacks)
    if set(given) != set(shapes):
        raise BindError(f"callbacks are of the shapes {', '.join(map(str, given))}; the program has {listed(shapes)}")
    return {shape: given[shape] for shape in shapes}


def _rotated() -> type[Step]:
    """The class of a rotated program's steps: the wheel of another program does not have it."""
    from .rotated import RotatedStep

    return RotatedStep


def _compared(given: Collective | None, ranks: int, digest: str, device: torch.device) -> Collective:
    """The ranks of a program of several, which all run the same: the wheel of another one does not have the file."""
    from .capabilities.collective import GroupCollective, check_ranks

    collective = GroupCollective() if given is None else given
    check_ranks(collective, ranks, digest, device)
    return collective


def _ops(plans: Sequence[Plan], manifest: Manifest, root: Path) -> dict[str, Semantics]:
    """References of the ops that a plugin brought: the wheel of a program without any does not have the file."""
    if not any(plan.ops for plan in plans):
        return {}
    from .capabilities.brought import load_ops

    return load_ops(plans, manifest, root)


def _backend(plans: Sequence[Plan], manifest: Manifest, root: Path, device: torch.device) -> Backend:
    ops = _ops(plans, manifest, root)
    if device.type == "cpu":
        return ReferenceBackend(ops)
    from .backends.cuda import CudaBackend

    return CudaBackend(plans, manifest, root, device, ops)
