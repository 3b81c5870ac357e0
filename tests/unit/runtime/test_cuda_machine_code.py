"""Which machine code the CUDA backend takes: of an arch, a driver, an assembler, a release of cuda-core."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from chains import frame_of, launch_of
from fakes.cuda_driver import ASSEMBLER, DEVICE, Driver, artifacts
from fakes.plans import chain_plan, node_of

from specc.runtime import program
from specc.runtime.backends import cuda
from specc.runtime.errors import DamagedWheelError, UnsupportedDeviceError, UnsupportedDriverError
from specc.runtime.plan.files.manifest import Assembler, Manifest, cuda_release
from specc.runtime.plan.files.plan_json import read_plan


def test_versions_of_cuda_core_that_adopt_streams_through_the_device() -> None:
    asked: list[tuple[int, tuple[int, int]]] = []

    def device(index: int) -> SimpleNamespace:
        return SimpleNamespace(create_stream=lambda obj: asked.append((index, obj.__cuda_stream__())) or "made")

    core = SimpleNamespace(Stream=SimpleNamespace(), Device=device)
    assert cuda.adopt_stream(core, 1, 77) == "made"
    assert asked == [(1, (0, 77))]


@pytest.mark.parametrize(("held", "fits"), [("sm_90", True), ("sm_90a", True), ("sm_80", False), ("sm_100", False)])
def test_machine_code_is_for_one_arch(driver: Driver, tmp_path: Path, held: str, fits: bool) -> None:
    plan = read_plan(chain_plan())
    manifest = artifacts(plan, tmp_path, arch=held)
    if fits:
        cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)
        return
    with pytest.raises(UnsupportedDeviceError, match=f"for sm_90; the wheel has {held}; rebuild .* --arch sm_90"):
        cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)


@pytest.mark.parametrize("release", [13010, 13000, 12090, 12080, 11040])
def test_an_older_driver_is_refused_by_name(driver: Driver, tmp_path: Path, release: int) -> None:
    """One of the assembler's major release is enough: code is loaded, not compiled."""
    plan = read_plan(chain_plan())
    driver.version = (0, release)
    if release >= ASSEMBLER.driver:
        cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
        return
    message = (
        rf"the driver is of CUDA {cuda_release(release)}, machine code for sm_90 needs one of CUDA 13\.0 or later: "
        r"ptxas 13\.4\.59 of Triton 3\.9\.0 assembled it; update the driver, or rebuild .* older Triton"
    )
    with pytest.raises(UnsupportedDriverError, match=message):
        cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    assert not driver.launches


@pytest.mark.parametrize(("held", "needed"), [("sm_100", False), ("sm_90a", True)])
def test_what_other_archs_need_refuses_nothing(driver: Driver, tmp_path: Path, held: str, needed: bool) -> None:
    plan = read_plan(chain_plan())
    manifest = artifacts(plan, tmp_path, arch="sm_90a" if needed else "sm_90")
    manifest = replace(manifest, assemblers={"sm_90": Assembler("12.8.93", 12000)} | {held: ASSEMBLER})
    driver.version = (0, 12080)
    if needed:
        with pytest.raises(UnsupportedDriverError, match="machine code for sm_90a needs one of CUDA 13"):
            cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)
    else:
        cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)


def test_a_driver_that_does_not_say_its_version(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.version = (999, 0)
    with pytest.raises(UnsupportedDeviceError, match="does not say its version: 999"):
        cuda.driver_version()
    gone = driver.bindings()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", gone)

    def missing() -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(gone, "cuDriverGetVersion", missing)
    with pytest.raises(UnsupportedDeviceError, match="there is no driver: Failed to dlopen"):
        cuda.driver_version()


def test_of_several_archs_the_devices_own_is_loaded(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    own = artifacts(plan, tmp_path)
    others = tuple(replace(artifact, arch="sm_80", entry="other") for artifact in own.artifacts)
    for listed in ((*others, *own.artifacts), (*own.artifacts, *others)):
        manifest = replace(own, archs=("sm_80", "sm_90"), artifacts=listed)
        backend = cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)
        backend.launch(launch_of(plan, "prepare_rows"), frame_of(plan, 1)[0])
    assert [kernel.entry for _, _, kernel, _ in driver.launches] == ["entry_prepare_rows"] * 2


def test_gfx_code_is_for_inspection(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(chain_plan())
    manifest = artifacts(plan, tmp_path, arch="gfx942")
    with pytest.raises(UnsupportedDeviceError, match=r"the wheel has gfx942 \(gfx942 for inspection: .* NVIDIA's"):
        cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.version.hip", "6.4")
    with pytest.raises(UnsupportedDeviceError, match=r"drives AMD GPUs; .* gfx machine code is for inspection"):
        program._resolve(torch.device("cuda"))


def test_machine_code_that_does_not_fit_the_plan(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    whole = artifacts(plan, tmp_path)
    kept = tuple(artifact for artifact in whole.artifacts if artifact.kernel != "prepare_rows")
    some = Manifest("toy", "0", "0", "0", "3.8.0", 1, "2.11", ("sm_90",), {}, kept, {}, {})
    with pytest.raises(DamagedWheelError, match="no machine code of kernel 'prepare_rows' for sm_90"):
        cuda.CudaBackend([plan], some, tmp_path, DEVICE)
    data = chain_plan()
    held = len(data["kernels"]["prepare_rows"]["arguments"]) + 2
    data["kernels"]["prepare_rows"]["arguments"].extend([["x", "i32"]] * 3)
    node_of(data, "prepare_rows")["args"].extend([{"name": "x", "kind": "literal", "literal": 1}] * 3)
    with pytest.raises(DamagedWheelError, match=f"takes {held} parameters, not {held + 1}"):
        cuda.CudaBackend([read_plan(data)], whole, tmp_path, DEVICE)


def test_early_versions_of_cuda_core(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", ModuleType("cuda.core"))
    experimental = driver.module("cuda.core.experimental")
    monkeypatch.setitem(sys.modules, "cuda.core.experimental", experimental)
    assert cuda.import_cuda_core() is experimental
    monkeypatch.setitem(sys.modules, "cuda.core.experimental", None)
    with pytest.raises(UnsupportedDeviceError, match=r"CUDA needs cuda-core .*no ObjectCode"):
        cuda.import_cuda_core()


def test_the_real_cuda_core_packs_pointers_and_numbers() -> None:
    """What `_value` passes comes out as kernels read it: ints as 64-bit pointers, ctypes scalars in their width."""
    pytest.importorskip("cuda.bindings")
    handler = pytest.importorskip("cuda.core._kernel_arg_handler")
    pointer, number, stride = 0x7F00_1234_5600, 2**31 - 1, 2**40 + 3
    packed = handler.ParamHolder((pointer, ctypes.c_int32(number), ctypes.c_int64(stride), 0))
    places = (ctypes.c_void_p * 4).from_address(packed.ptr)
    assert ctypes.c_uint64.from_address(places[0]).value == pointer
    assert ctypes.c_int32.from_address(places[1]).value == number
    assert ctypes.c_int64.from_address(places[2]).value == stride
    assert ctypes.c_uint64.from_address(places[3]).value == 0


def test_the_real_cuda_core_takes_our_launch_configuration() -> None:
    pytest.importorskip("cuda.bindings")
    core = pytest.importorskip("cuda.core")
    config = core.LaunchConfig(grid=(4, 63, 1), block=(128, 1, 1), shmem_size=16)
    assert (tuple(config.grid), tuple(config.block), config.shmem_size) == ((4, 63, 1), (128, 1, 1), 16)
    assert {"ObjectCode", "launch", "Device", "Stream"} <= set(dir(core))
    assert hasattr(core.Stream, "from_handle") or hasattr(core.Device, "create_stream")
