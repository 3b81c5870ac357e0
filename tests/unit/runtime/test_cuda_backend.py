"""The CUDA backend on a driver that only writes down what it is told."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chains import frame_of, launch_of
from fakes.cuda_driver import DEVICE, Driver, artifacts
from fakes.plans import by_torch, chain_plan, lookup_plan, node_of

from specc.runtime.backends import cuda
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.entry.external import Forward
from specc.runtime.entry.frame import Frame
from specc.runtime.errors import BindError, PlanError
from specc.runtime.memory.arena import Arena
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.nodes import Launch, Reference
from specc.runtime.state.relay import RelayPools


def named(launch: Launch, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """What a launch was given, by the names of its arguments."""
    return {argument.name: value for argument, value in zip(launch.args, arguments, strict=False)}


def test_arguments_grid_and_stream(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path, shared=1024), tmp_path, DEVICE)
    frame, arena, table = frame_of(plan, 3)
    prepare = launch_of(plan, "prepare_rows")
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
    (reference,) = [node for node in torched.nodes("step") if isinstance(node, Reference)]
    (frame, arena, _), (wanted_frame, wanted, _) = frame_of(torched, 3), frame_of(plan, 3)
    for memory in (arena, wanted):
        memory.bytes.copy_(torch.arange(len(memory.bytes)) % 3)
        memory.buffer("req_pool_indices").copy_(torch.tensor([3, 0, 1, 2]))
        memory.buffer("seq_lens").copy_(torch.tensor([2, 0, 1, 3]))
    before = arena.bytes.clone()
    backend.launch(reference, frame_of(torched, 0)[0])
    backend.launch(reference, frame)
    ReferenceBackend().launch(launch_of(plan, "prepare_rows"), wanted_frame)
    assert driver.launches == []
    assert torch.equal(arena.bytes, wanted.bytes)
    assert not torch.equal(arena.bytes, before)


def test_a_launch_has_the_grid_of_its_own_bucket(driver: Driver, tmp_path: Path) -> None:
    """As many rows as the batch, and the programs per row of the smallest bucket that holds it."""
    raw = chain_plan()
    programs = {1: (9, 1), 2: (5, 2), 4: (3, 1)}
    for launch in (node for phase in raw["phases"] for node in phase["nodes"] if node["kind"] == "launch"):
        launch["grid"] = {str(bucket): [bucket, *per_row] for bucket, per_row in programs.items()}
    plan = read_plan(raw)
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for rows in (1, 2, 3, 4, 1):
        backend.launch(launch_of(plan, "prepare_rows"), frame_of(plan, rows)[0])
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
        launch = launch_of(plan, f"draft_argmax_{step}")
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
    backend.launch(launch_of(plan, "prepare_rows"), frame)
    assert driver.launches[-1][3][-1].value == 9
    prepare["args"][-1]["target"] = "relay.nothing"
    with pytest.raises(PlanError, match=r"reads rows of the unknown buffer 'relay\.nothing'"):
        read_plan(raw)


def test_a_grid_of_no_rows_is_not_launched(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for rows in (0, 2, 0):
        backend.launch(launch_of(plan, "prepare_rows"), frame_of(plan, rows)[0])
    assert [config.grid[0] for _, config, _, _ in driver.launches] == [2]


def test_launch_configurations_are_made_once(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for rows in (3, 3, 4, 3):
        backend.launch(launch_of(plan, "prepare_rows"), frame_of(plan, rows)[0])
    assert driver.configs == 2
    assert [config.grid[0] for _, config, _, _ in driver.launches] == [3, 3, 4, 3]


def test_kernels_of_one_grid_have_each_its_own_shared_memory(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    manifest = artifacts(plan, tmp_path, hidden=0)
    sizes = {artifact.kernel: 1024 * count for count, artifact in enumerate(manifest.artifacts)}
    listed = tuple(replace(artifact, shared=sizes[artifact.kernel]) for artifact in manifest.artifacts)
    backend = cuda.CudaBackend([plan], replace(manifest, artifacts=listed), tmp_path, DEVICE)
    frame, _, _ = frame_of(plan, 2)
    for step in (0, 1):
        frame.adopt(f"draft_logits{step}", torch.zeros(2, 1, 32))
    nodes = [launch_of(plan, name) for name in ("prepare_rows", "draft_argmax_0", "prepare_rows", "draft_argmax_1")]
    for node in nodes:
        backend.launch(node, frame)
    assert len({config.grid for _, config, _, _ in driver.launches}) == 1
    assert [config.shmem_size for _, config, _, _ in driver.launches] == [sizes[node.kernel] for node in nodes]


def test_streams_are_adopted_once_and_the_default_stream_has_a_name(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = read_plan(chain_plan())
    backend = cuda.CudaBackend([plan], artifacts(plan, tmp_path), tmp_path, DEVICE)
    for handle in (0, 77, 0, 77, 78):
        stream = SimpleNamespace(cuda_stream=handle)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, stream=stream: stream)
        backend.launch(launch_of(plan, "prepare_rows"), frame_of(plan, 2)[0])
    assert driver.streams == [1, 77, 78]
    assert [launch[0] for launch in driver.launches] == [f"stream {handle}" for handle in (1, 77, 1, 77, 78)]


def test_tables_are_passed_with_their_sizes(driver: Driver, tmp_path: Path) -> None:
    plan = read_plan(lookup_plan())
    propose = launch_of(plan, "ngram_propose")
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
    backend.launch(launch_of(plan, "prepare_rows"), frame)
    frame.table = torch.zeros(8, columns, dtype=torch.int32)
    with pytest.raises(BindError, match=f"req_to_token_stride of kernel 'prepare_rows' is {columns:#x}"):
        backend.launch(launch_of(plan, "prepare_rows"), frame)
