"""The CUDA backend: machine code of the wheel, loaded and launched through `cuda.core`.

What has no kernel is queued by torch, as the CPU backend computes it: references neither read a value on the host nor
copy one from there, so that a capture takes them as it takes the forwards.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..entry.frame import Frame
from ..errors import BindError, DamagedWheelError, UnsupportedDeviceError
from ..plan.files.manifest import Artifact, Manifest
from ..plan.nodes import Argument, Computed, Kernel, Launch, Reference
from ..plan.plan import Plan
from ..semantics.convention import Semantics
from .cpu import ReferenceBackend

WARP = 32
DEFAULT_SHARED = 48 * 1024
"""Dynamic shared memory in bytes from which on a kernel must be allowed to use it."""
ALIGNMENT = 16
LEGACY_STREAM = 1
"""The driver's own name for the default stream, which torch calls 0."""

SCALARS: dict[str, Callable[[int], Any]] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


@dataclass(frozen=True)
class ForeignStream:
    """A stream that `cuda.core` did not make, in the protocol by which it takes one over."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Protocol version, stream handle."""
        return 0, self.handle


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on the device. `scratch` counts the hidden trailing parameters, which get null pointers."""

    kernel: Any
    plan: Kernel
    block: int
    shared: int
    scratch: int


class CudaBackend:
    """Launches the kernels of plans. Everything is loaded when it is made; nothing is compiled.

    Raises UnsupportedDeviceError when the wheel has no machine code for the device or `cuda.core` is missing, and
    UnsupportedDriverError when the driver is older than that code.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        manifest: Manifest,
        root: Path,
        device: torch.device,
        references: Mapping[str, Semantics] | None = None,
    ) -> None:
        """Load the machine code in the package folder `root` onto `device`; `brought` as in `ReferenceBackend`."""
        self._device = device
        self._core = import_cuda_core()
        self._configs: dict[tuple[tuple[int, ...], int, int], Any] = {}
        self._streams: dict[int, Any] = {}
        self._torch = ReferenceBackend(references)
        arch = device_arch(device)
        artifacts = manifest.artifacts_for(arch)
        manifest.check_driver(arch, driver_version())
        with torch.cuda.device(device):
            torch.cuda.init()
            self._core.Device(device.index).set_current()
            kernels = {name: kernel for plan in plans for name, kernel in plan.kernels.items()}
            self._kernels = {
                name: self._load(name, kernel, artifacts.get(name), root, arch) for name, kernel in kernels.items()
            }

    def _load(self, name: str, kernel: Kernel, artifact: Artifact | None, root: Path, arch: str) -> LoadedKernel:
        if artifact is None:
            raise DamagedWheelError(f"the wheel has no machine code of kernel {name!r} for {arch}")
        scratch = len(artifact.parameters) - len(kernel.arguments)
        if scratch < 0:
            count = len(artifact.parameters)
            raise DamagedWheelError(f"{artifact.file} takes {count} parameters, not {len(kernel.arguments)}")
        code = self._core.ObjectCode.from_cubin((root / artifact.file).read_bytes())
        loaded = code.get_kernel(artifact.entry)
        if artifact.shared >= DEFAULT_SHARED:
            allow_shared(loaded, artifact.shared, self._device.index)
        return LoadedKernel(loaded, kernel, artifact.num_warps * WARP, artifact.shared, scratch)

    def launch(self, node: Computed, frame: Frame) -> None:
        """Queue one kernel, or the reference of an op, on torch's current stream; nothing for 0 rows, as of no grid.

        BindError when a pointer lacks a promised alignment.
        """
        if frame.rows == 0:
            return
        if isinstance(node, Reference):
            self._torch.launch(node, frame)
            return
        loaded = self._kernels[node.kernel]
        types = dict(loaded.plan.arguments)
        values = [_value(argument, types[argument.name], frame, node, loaded.plan) for argument in node.args]
        config = self._config(node, loaded, frame)
        self._core.launch(self._stream(), config, loaded.kernel, *values, *([0] * loaded.scratch))

    def _stream(self) -> Any:
        """The current stream of torch as `cuda.core` has streams; made once per handle."""
        handle = int(torch.cuda.current_stream(self._device).cuda_stream) or LEGACY_STREAM
        if handle not in self._streams:
            self._streams[handle] = adopt_stream(self._core, self._device.index, handle)
        return self._streams[handle]

    def _config(self, node: Launch, loaded: LoadedKernel, frame: Frame) -> Any:
        _, y, z = node.grid[frame.plan.bucket(frame.rows)]
        key = (grid := (frame.rows, y, z), loaded.block, loaded.shared)
        if key not in self._configs:
            block = (loaded.block, 1, 1)
            self._configs[key] = self._core.LaunchConfig(grid=grid, block=block, shmem_size=loaded.shared)
        return self._configs[key]


def _value(argument: Argument, kind: str, frame: Frame, node: Launch, kernel: Kernel) -> Any:
    """The value to pass: an int is a pointer to `cuda.core`, a ctypes scalar a number of that width."""
    plain = argument_value(argument, frame)
    value = plain.data_ptr() if isinstance(plain, Tensor) else plain
    if argument.name in kernel.aligned and value % ALIGNMENT:
        name = f"{argument.name} of kernel {node.kernel!r}"
        raise BindError(f"{name} is {value:#x}, promised to be a multiple of {ALIGNMENT}")
    return value if kind.startswith("*") else SCALARS[kind](value)


def argument_value(argument: Argument, frame: Frame) -> Tensor | int:
    """What a launch is given for an argument: a tensor for a pointer, a number for anything else."""
    if argument.literal is not None:
        return argument.literal
    if argument.kind == "buffer":
        return frame.buffer(argument.target)
    if argument.kind == "row_stride":
        return frame.buffer(argument.target).stride(0)
    if argument.kind == "slot_stride":
        buffer = frame.kv[argument.target][0]
        return buffer.stride(0) * buffer.element_size()
    tensor = frame.read(argument.target)
    if argument.kind == "size":
        return tensor.shape[argument.axis]
    return tensor.stride(argument.axis) if argument.kind == "stride" else tensor


def device_arch(device: torch.device) -> str:
    """The arch that machine code for this device must have been built for, as `sm_90`."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def driver_version() -> int:
    """The driver's version as it counts itself: 12080 is that of CUDA 12.8. UnsupportedDeviceError if it has none."""
    driver = importlib.import_module("cuda.bindings.driver")
    try:
        error, version = driver.cuDriverGetVersion()
    except RuntimeError as missing:  # there is no library of a driver
        raise UnsupportedDeviceError(f"there is no driver: {missing}") from missing
    if error != driver.CUresult.CUDA_SUCCESS:
        raise UnsupportedDeviceError(f"the driver does not say its version: {error}")
    return int(version)


def import_cuda_core() -> Any:
    """`cuda.core`, or the experimental module of its early versions. UnsupportedDeviceError when there is neither."""
    reasons: list[str] = []
    for name in ("cuda.core", "cuda.core.experimental"):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            reasons.append(f"{name}: {error}")
            continue
        if hasattr(module, "ObjectCode"):
            return module
        reasons.append(f"{name}: no ObjectCode")
    raise UnsupportedDeviceError(f"CUDA needs cuda-core and cuda-bindings ({'; '.join(reasons)})")


def adopt_stream(core: Any, device: int, handle: int) -> Any:
    """A stream of `cuda.core` that stands for the stream `handle` of device number `device`."""
    if hasattr(core.Stream, "from_handle"):
        return core.Stream.from_handle(handle)
    return core.Device(device).create_stream(ForeignStream(handle))


def allow_shared(kernel: Any, size: int, device: int) -> None:
    """Let a kernel use `size` bytes of dynamic shared memory on device number `device`."""
    driver = importlib.import_module("cuda.bindings.driver")
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    handle = getattr(kernel, "handle", None) or kernel._handle
    (error,) = driver.cuKernelSetAttribute(attribute, size, handle, driver.CUdevice(device))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise UnsupportedDeviceError(f"the device refuses {size} bytes of shared memory: {error}")
