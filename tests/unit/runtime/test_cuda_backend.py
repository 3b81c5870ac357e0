"""The CUDA backend on a driver that only writes down what it is told."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from chains import make_engine
from fakes.plans import by_torch, chain_plan, lookup_plan, node_of

from specc.runtime import program
from specc.runtime.backends import cuda
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.errors import BindError, DamagedWheelError, PlanError, UnsupportedDeviceError, UnsupportedDriverError
from specc.runtime.external import Forward
from specc.runtime.frame import Frame
from specc.runtime.memory.arena import Arena
from specc.runtime.plan.manifest import Artifact, Assembler, Manifest, cuda_release
from specc.runtime.plan.nodes import Launch, Reference
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.plan_json import read_plan
from specc.runtime.state.relay import RelayPools

DEVICE = torch.device("cuda", 1)
ASSEMBLER = Assembler("13.4.59", 13000)


@dataclass
class FakeKernel:
    code: bytes
    entry: str
    handle: str = "handle"


@dataclass
class Driver:
    """Records launches and attributes."""

    launches: list[tuple[Any, Any, FakeKernel, tuple[Any, ...]]] = field(default_factory=list)
    shared: list[tuple[Any, ...]] = field(default_factory=list)
    configs: int = 0
    version: tuple[int, int] = (0, 13000)
    """What `cuDriverGetVersion` returns: an error and the version."""
    streams: list[int] = field(default_factory=list)

    def launch(self, stream: Any, config: Any, kernel: FakeKernel, *arguments: Any) -> None:
        self.launches.append((stream, config, kernel, arguments))

    def config(self, **fields: Any) -> SimpleNamespace:
        self.configs += 1
        return SimpleNamespace(**fields)

    def adopt(self, handle: int) -> str:
        """A stream object for a foreign handle."""
        self.streams.append(handle)
        return f"stream {handle}"

    def module(self, name: str) -> ModuleType:
        module = ModuleType(name)
        code = SimpleNamespace(
            from_cubin=lambda code: SimpleNamespace(get_kernel=lambda entry: FakeKernel(code, entry))
        )
        module.__dict__.update(ObjectCode=code, LaunchConfig=self.config, launch=self.launch)
        module.__dict__["Device"] = lambda index: SimpleNamespace(set_current=lambda: None)
        module.__dict__["Stream"] = SimpleNamespace(from_handle=self.adopt)
        return module

    def bindings(self) -> ModuleType:
        driver = SimpleNamespace(
            CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="max"),
            CUresult=SimpleNamespace(CUDA_SUCCESS=0),
            CUdevice=lambda index: ("device", index),
            cuDriverGetVersion=lambda: self.version,
            cuKernelSetAttribute=lambda *arguments: (self.shared.append(arguments), (0,))[1],
        )
        module = ModuleType("cuda.bindings.driver")
        module.__dict__.update(vars(driver))
        return module


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.core", fake.module("cuda.core"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", ModuleType("cuda.bindings"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake.bindings())
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    return fake


def artifacts(plan: Plan, root: Path, arch: str = "sm_90", shared: int = 0, hidden: int = 2) -> Manifest:
    """Files of invented machine code, and the manifest that lists them."""
    listed = []
    for name, kernel in plan.kernels.items():
        (root / f"{name}.cubin").write_bytes(name.encode())
        types = (*(kind for _, kind in kernel.arguments), *(["*i8"] * hidden))
        listed.append(Artifact(name, arch, "cubin", f"{name}.cubin", f"entry_{name}", 8, shared, types))
    return Manifest("toy", "0", "0", "0", "3.9.0", 1, "2.11", (arch,), {}, tuple(listed), {}, {arch: ASSEMBLER})


def frame_of(plan: Plan, rows: int) -> tuple[Frame, Arena, torch.Tensor]:
    arena = Arena(plan, torch.device("cpu"))
    table = make_engine(chain_plan()).table
    return Frame(plan, arena, RelayPools(plan, arena), table, rows), arena, table


def node(plan: Plan, name: str) -> Launch:
    found = next(n for n in plan.nodes("step") if n.name == name)
    assert isinstance(found, Launch)
    return found


def named(launch: Launch, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """What a launch was given, by the names of its arguments."""
    return {argument.name: value for argument, value in zip(launch.args, arguments, strict=False)}


def test_arguments_grid_and_stream(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path, shared=1024), tmp_path, DEVICE)
    frame, arena, table = frame_of(plan, 3)
    prepare = node(plan, "prepare_rows")
    backend.launch(prepare, frame)
    stream, config, kernel, arguments = driver.launches[0]
    assert stream == "stream 77"
    assert (config.grid, config.block, config.shmem_size) == ((3, 1, 1), (256, 1, 1), 1024)
    assert (kernel.code, kernel.entry) == (b"prepare_rows", "entry_prepare_rows")
    given = named(prepare, arguments)
    assert given["rows_ptr"] == arena.buffer("req_pool_indices").data_ptr()
    assert given["req_to_token_ptr"] == table.data_ptr()
    for name, number in (("req_to_token_stride", table.stride(0)), ("req_to_token_columns", table.shape[1])):
        assert isinstance(given[name], ctypes.c_int64)
        assert given[name].value == number
    assert given["relay_bonus_ptr"] == arena.buffer("relay.bonus").data_ptr()
    assert given["tokens_ptr"] == arena.buffer("tokens").data_ptr()
    assert arguments[len(prepare.args) :] == (0, 0)
    assert driver.shared == []


def test_what_has_no_kernel_is_computed_by_torch(driver: Driver, tmp_path: Path) -> None:
    """On the memory of the launch that it stands for; of 0 rows nothing is computed."""
    plan, torched = read_plan(chain_plan()), read_plan(by_torch(chain_plan(), "prepare_rows"))
    backend = cuda.CudaBackend([torched], artifacts(torched, tmp_path), tmp_path, DEVICE)
    (reference,) = [one for one in torched.nodes("step") if isinstance(one, Reference)]
    (frame, arena, _), (other, wanted, _) = frame_of(torched, 3), frame_of(plan, 3)
    for memory in (arena, wanted):
        memory.bytes.copy_(torch.arange(len(memory.bytes)) % 3)
        memory.buffer("req_pool_indices").copy_(torch.tensor([3, 0, 1, 2]))
        memory.buffer("seq_lens").copy_(torch.tensor([2, 0, 1, 3]))
    before = arena.bytes.clone()
    backend.launch(reference, frame_of(torched, 0)[0])
    backend.launch(reference, frame)
    ReferenceBackend().launch(node(plan, "prepare_rows"), other)
    assert driver.launches == []
    assert torch.equal(arena.bytes, wanted.bytes)
    assert not torch.equal(arena.bytes, before)


def test_a_launch_has_the_grid_of_its_own_bucket(driver: Driver, tmp_path: Path) -> None:
    """As many rows as the batch, and the programs per row of the smallest bucket that holds it."""
    raw = chain_plan()
    programs = {1: (9, 1), 2: (5, 2), 4: (3, 1)}
    for launch in (one for phase in raw["phases"] for one in phase["nodes"] if one["kind"] == "launch"):
        launch["grid"] = {str(bucket): [bucket, *per_row] for bucket, per_row in programs.items()}
    plan = read_plan(raw)
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for rows in (1, 2, 3, 4, 1):
        backend.launch(node(plan, "prepare_rows"), frame_of(plan, rows)[0])
    buckets = [1, 2, 4, 4, 1]
    grids = [(rows, *programs[bucket]) for rows, bucket in zip((1, 2, 3, 4, 1), buckets, strict=True)]
    assert [config.grid for _, config, _, _ in driver.launches] == grids


def test_engine_values_and_literals(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path, hidden=0), tmp_path, DEVICE)
    frame, _, _ = frame_of(plan, 2)
    for step in (0, 1):
        forward = Forward(torch.zeros(2, 1, 32))
        frame.adopt(f"draft_logits{step}", forward.logits)
        launch = node(plan, f"draft_argmax_{step}")
        backend.launch(launch, frame)
        given = named(launch, driver.launches[-1][3])
        assert len(given) == len(driver.launches[-1][3])
        assert given["logits_ptr"] == forward.logits.data_ptr()
        assert isinstance(given["column"], ctypes.c_int32)
        assert given["column"].value == 2 + step


def test_rows_of_a_table_are_as_far_apart_as_it_has_them(driver: Driver, tmp_path: Path) -> None:
    raw = chain_plan()
    raw["kernels"]["prepare_rows"]["arguments"].append(["drafts_stride", "i64"])
    prepare = node_of(raw, "prepare_rows")
    prepare["args"].append({"name": "drafts_stride", "kind": "row_stride", "target": "relay.bonus"})
    plan = read_plan(raw)
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path, hidden=0), tmp_path, DEVICE)
    frame, arena, _ = frame_of(plan, 2)
    arena.stand_for("relay.bonus", torch.zeros(7, 9)[:, :4])
    backend.launch(node(plan, "prepare_rows"), frame)
    assert driver.launches[-1][3][-1].value == 9
    prepare["args"][-1]["target"] = "relay.nothing"
    with pytest.raises(PlanError, match=r"reads rows of the unknown buffer 'relay\.nothing'"):
        read_plan(raw)


def test_a_grid_of_no_rows_is_not_launched(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for rows in (0, 2, 0):
        backend.launch(node(plan, "prepare_rows"), frame_of(plan, rows)[0])
    assert [config.grid[0] for _, config, _, _ in driver.launches] == [2]


def test_launch_configurations_are_made_once(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for rows in (3, 3, 4, 3):
        backend.launch(node(plan, "prepare_rows"), frame_of(plan, rows)[0])
    assert driver.configs == 2
    assert [config.grid[0] for _, config, _, _ in driver.launches] == [3, 3, 4, 3]


def test_kernels_of_one_grid_have_each_its_own_shared_memory(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    manifest = artifacts(plan, tmp_path, hidden=0)
    sizes = {one.kernel: 1024 * count for count, one in enumerate(manifest.artifacts)}
    listed = tuple(replace(one, shared=sizes[one.kernel]) for one in manifest.artifacts)
    backend = cuda.CudaBackend([plan], replace(manifest, artifacts=listed), tmp_path, DEVICE)
    frame, _, _ = frame_of(plan, 2)
    for step in (0, 1):
        frame.adopt(f"draft_logits{step}", torch.zeros(2, 1, 32))
    nodes = [node(plan, name) for name in ("prepare_rows", "draft_argmax_0", "prepare_rows", "draft_argmax_1")]
    for one in nodes:
        backend.launch(one, frame)
    assert len({config.grid for _, config, _, _ in driver.launches}) == 1
    assert [config.shmem_size for _, config, _, _ in driver.launches] == [sizes[one.kernel] for one in nodes]


def test_streams_are_adopted_once_and_the_default_stream_has_a_name(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for handle in (0, 77, 0, 77, 78):
        stream = SimpleNamespace(cuda_stream=handle)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, stream=stream: stream)
        backend.launch(node(plan, "prepare_rows"), frame_of(plan, 2)[0])
    assert driver.streams == [1, 77, 78]
    assert [launch[0] for launch in driver.launches] == [f"stream {handle}" for handle in (1, 77, 1, 77, 78)]


def test_versions_of_cuda_core_that_adopt_streams_through_the_device() -> None:
    asked: list[tuple[int, tuple[int, int]]] = []

    def device(index: int) -> SimpleNamespace:
        return SimpleNamespace(create_stream=lambda obj: asked.append((index, obj.__cuda_stream__())) or "made")

    core = SimpleNamespace(Stream=SimpleNamespace(), Device=device)
    assert cuda.adopt_stream(core, 1, 77) == "made"
    assert asked == [(1, (0, 77))]


def test_tables_are_passed_with_their_sizes(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(lookup_plan())
    propose = node(plan, "ngram_propose")
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    arena = Arena(plan, torch.device("cpu"))
    for corpus in (torch.arange(5, dtype=torch.int32), torch.arange(0, dtype=torch.int32)):
        frame = Frame(plan, arena, RelayPools(plan, arena), torch.zeros(8, 9), 3, inputs={"corpus": corpus})
        backend.launch(propose, frame)
        given = named(propose, driver.launches[-1][3])
        assert given["corpus_ptr"] == corpus.data_ptr()
        assert isinstance(given["corpus_size"], ctypes.c_int64)
        assert given["corpus_size"].value == len(corpus)
    with pytest.raises(PlanError, match="'corpus' is neither a value in memory nor an input that is there"):
        backend.launch(propose, Frame(plan, arena, RelayPools(plan, arena), torch.zeros(8, 9), 3))


@pytest.mark.parametrize(("shared", "asks"), [(48 * 1024 - 1, False), (48 * 1024, True), (100_000, True)])
def test_much_shared_memory_is_asked_for(driver: Driver, tmp_path: Path, shared: int, asks: bool) -> None:
    plan = read_plan(chain_plan())
    cuda.CudaBackend([plan], artifacts(plan, tmp_path, shared=shared), tmp_path, DEVICE)
    assert driver.shared == [("max", shared, "handle", ("device", 1))] * len(plan.kernels) * asks


@pytest.mark.parametrize("columns", [90, 88])
def test_promised_alignment_is_checked(driver: Driver, tmp_path: Path, columns: int) -> None:
    data = chain_plan()
    data["kernels"]["prepare_rows"]["aligned"] = ["rows_ptr", "req_to_token_stride"]
    plan = read_plan(data)
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    frame, _, _ = frame_of(plan, 2)
    backend.launch(node(plan, "prepare_rows"), frame)
    frame.table = torch.zeros(8, columns, dtype=torch.int32)
    with pytest.raises(BindError, match=f"req_to_token_stride of kernel 'prepare_rows' is {columns:#x}"):
        backend.launch(node(plan, "prepare_rows"), frame)


@pytest.mark.parametrize(("held", "fits"), [("sm_90", True), ("sm_90a", True), ("sm_80", False), ("sm_100", False)])
def test_machine_code_is_for_one_arch(driver: Driver, tmp_path: Path, held: str, fits: bool) -> None:
    plan = read_plan(chain_plan())
    manifest = artifacts(plan, tmp_path, arch=held)
    if fits:
        cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)
        return
    with pytest.raises(UnsupportedDeviceError, match=f"for sm_90; the wheel has {held}; rebuild .* --arch sm_90"):
        cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)


@pytest.mark.parametrize("found", [13010, 13000, 12090, 12080, 11040])
def test_an_older_driver_is_refused_by_name(driver: Driver, tmp_path: Path, found: int) -> None:
    """One of the assembler's major release is enough: code is loaded, not compiled."""
    plan = read_plan(chain_plan())
    driver.version = (0, found)
    if found >= ASSEMBLER.driver:
        cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
        return
    message = (
        rf"the driver is of CUDA {cuda_release(found)}, machine code for sm_90 needs one of CUDA 13\.0 or later: "
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
    others = tuple(replace(one, arch="sm_80", entry="other") for one in own.artifacts)
    for listed in ((*others, *own.artifacts), (*own.artifacts, *others)):
        manifest = replace(own, archs=("sm_80", "sm_90"), artifacts=listed)
        backend = cuda.CudaBackend([plan], manifest, tmp_path, DEVICE)
        backend.launch(node(plan, "prepare_rows"), frame_of(plan, 1)[0])
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
    kept = tuple(one for one in whole.artifacts if one.kernel != "prepare_rows")
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
