"""bench/sglang/steps.py on traces whose steps are known, because they are made here."""

import json
from pathlib import Path

import pytest
import steps
import variants
from ruamel.yaml import YAML

FOLDER = Path(__file__).parents[3] / "bench" / "sglang"
STEP = 1000.0
STEPS = 12


class Trace:
    """Events in the order of time, each a microsecond after the last one's end."""

    def __init__(self):
        self.events, self.now, self._correlation = [], 0.0, 0

    def run(self, *kernels, graph=False, cat="kernel"):
        self._correlation += 1
        name = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
        self._add("cuda_runtime", name, 2.0, self.now)
        for kernel, duration in kernels:
            self._add(cat, kernel, duration, self.now)
            self.now += duration + 1

    def _add(self, cat, name, duration, at):
        args = {"correlation": self._correlation}
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": at, "dur": duration, "args": args})

    def until(self, at):
        assert self.now < at
        self.now = at


def stock():
    """Prefill, then steps of three graphs with a copy and two kernels between and before them."""
    trace = Trace()
    trace.run(("gemm", 50.0))
    for step in range(STEPS):
        trace.until(100 + step * STEP)
        trace.run(("gemm", 100.0), ("_draft_topk1_partial_argmax_kernel", 5.0), graph=True)
        trace.run(("build_chain_tree", 4.0))
        trace.run(("Memcpy HtoD", 1.0), cat="gpu_memcpy")
        trace.run(("create_flashinfer_kv_indices_triton", 2.0))
        trace.run(("gemm", 200.0), ("void at::native::elementwise_kernel<add>", 3.0), graph=True)
        trace.run(("gemm", 60.0), graph=True)
        trace.run(("Memcpy DtoH", 1.5), cat="gpu_memcpy")
    return trace.events


def one_graph():
    trace = Trace()
    for step in range(STEPS):
        trace.until(100 + step * STEP)
        trace.run(("Memcpy HtoD", 1.0), cat="gpu_memcpy")
        kernels = [("rows", 3.0), ("get_num_kv_splits_triton", 2.0), ("gemm", 360.0), ("argmax", 7.0)]
        trace.run(*kernels, graph=True)
    return trace.events


def test_launches_between_graphs_are_counted_by_name():
    found = steps.summarise(stock(), STEPS)
    assert found["graphs_per_step"] == 3
    assert found["steps_measured"] == STEPS // 2
    assert found["graph_kernels"] == [2, 2, 1]
    assert found["graph_same_kernels"]
    assert found["launches_per_step"] == 3 + 4
    assert found["between_per_step"] == 3  # the copy of results comes after the last graph
    assert {name for name, *_ in found["between"]} == {
        "build_chain_tree",
        "Memcpy HtoD",
        "create_flashinfer_kv_indices_triton",
    }
    assert found["outside_per_step"] == {"kernel": 2, "memcpy": 2}
    assert found["wall_us"] == pytest.approx(STEP)
    assert found["gpu_busy_us"] == pytest.approx(100 + 5 + 4 + 1 + 2 + 200 + 3 + 60 + 1.5)


def test_time_is_split_by_kind():
    found = steps.summarise(stock(), STEPS)
    expected = {"program": 0, "metadata": 2, "outside": 4 + 1 + 1.5, "speculation": 5, "torch": 3, "forward": 360}
    assert found["us_by_kind"] == pytest.approx(expected)
    assert found["glue_us"] == pytest.approx(2 + 6.5 + 5)
    assert sum(found["us_by_kind"].values()) == pytest.approx(found["gpu_busy_us"])


def test_a_step_of_one_graph_has_nothing_between():
    found = steps.summarise(one_graph(), STEPS, {"rows", "argmax", "topk"})
    assert found["graphs_per_step"] == 1
    assert found["between_per_step"] == 0
    assert found["program_kernels"] == ["argmax", "rows"]
    assert found["kernels_by_kind"] == {
        "program": 2,
        "metadata": 1,
        "outside": 1,
        "speculation": 0,
        "torch": 0,
        "forward": 1,
    }
    assert found["glue_us"] == pytest.approx(3 + 7 + 2 + 1)
    assert len(found["one_step"]) == 2


def test_a_kernel_named_like_the_programs_counts_as_its_own_only_there():
    assert steps.summarise(one_graph(), STEPS)["us_by_kind"]["program"] == 0


def test_one_step_more_than_answers_tell_of_changes_no_figure():
    """Overlap launches a step that nobody waits for."""
    assert steps.summarise(stock(), STEPS - 1)["graphs_per_step"] == 3


@pytest.mark.parametrize(("events", "count"), [([], 0), (Trace().events, 5), (stock()[:20], 1)])
def test_a_trace_without_steps_is_an_error_and_no_exception(events, count):
    assert "error" in steps.summarise(events, count)


def test_names_of_a_programs_kernels(tmp_path):
    plan = {"kernels": {"prefill_topk": {"function": "topk"}, "prepare_rows": {"function": "rows"}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert steps.read_program(tmp_path / "plan.json") == {"topk", "rows"}


def test_overlapping_kernels_are_busy_once():
    assert steps.union([(0, 10), (5, 12), (20, 21), (20, 20.5)]) == 13


@pytest.mark.parametrize(
    ("name", "in_graph", "kind"),
    [
        ("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>", True, "speculation"),
        ("void at::native::mbtopk::radixFindKthValues<float>", True, "speculation"),
        ("void (anonymous namespace)::cunn_SoftMaxForward<8, float>", True, "speculation"),
        ("void at_cuda_detail::cub::DeviceScanKernel<...>", False, "metadata"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", True, "torch"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", False, "outside"),
        ("_fwd_grouped_kernel_stage1", True, "forward"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", True, "forward"),
    ],
)
def test_kinds_of_kernels_as_torch_and_sglang_name_them(name, in_graph, kind):
    assert steps.classify(name, in_graph, ()) == kind


def test_every_variant_with_speculation_has_a_configuration_of_its_sizes():
    """Of both kinds of a program's numbers: those that SGLang is started with, and those it is compiled for."""
    wanted = {v.program: v for v in variants.VARIANTS.values() if v.program}
    found = {}
    for path in (FOLDER / "configs").glob("*.yaml"):
        config = YAML(typ="safe").load(path)
        assert config["name"] == f"bench_{path.stem}"
        found[f"specc_program_{config['name']}"] = config
    assert found.keys() == wanted.keys()
    for program, variant in wanted.items():
        config = found[program]
        assert config["algorithm"] == variant.algorithm
        assert config["num_steps"] == variants.STEPS
        assert config.get("topk", 1) == variant.topk
        assert config.get("num_draft_tokens", variants.STEPS + 1) == variant.nodes
        room = variants.CONTEXT + 2 * (variants.STEPS + 1)  # for the two steps that end a text
        assert config.get("context_length", room) == room
        assert max(config["buckets"]) == variant.engine(Path(), "cuda")["max_running_requests"]
