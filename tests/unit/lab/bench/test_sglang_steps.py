"""bench/sglang/steps.py on traces whose steps are known, because they are made here."""

import json
from pathlib import Path

import models
import pytest
import steps
import torch
import variants
from prompts import lengths, text_prompts
from ruamel.yaml import YAML
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

FOLDER = Path(__file__).parents[4] / "bench" / "sglang"
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
    summary = steps.summarise(stock(), STEPS)
    assert summary["graphs_per_step"] == 3
    assert summary["steps_measured"] == STEPS // 2
    assert summary["graph_kernels"] == [2, 2, 1]
    assert summary["graph_same_kernels"]
    assert summary["launches_per_step"] == 3 + 4
    assert summary["between_per_step"] == 3  # the copy of results comes after the last graph
    assert {name for name, *_ in summary["between"]} == {
        "build_chain_tree",
        "Memcpy HtoD",
        "create_flashinfer_kv_indices_triton",
    }
    assert summary["outside_per_step"] == {"kernel": 2, "memcpy": 2}
    assert summary["wall_us"] == pytest.approx(STEP)
    assert summary["gpu_busy_us"] == pytest.approx(100 + 5 + 4 + 1 + 2 + 200 + 3 + 60 + 1.5)


def test_time_is_split_by_kind():
    summary = steps.summarise(stock(), STEPS)
    expected = {"program": 0, "metadata": 2, "outside": 4 + 1 + 1.5, "speculation": 5, "torch": 3, "forward": 360}
    assert summary["us_by_kind"] == pytest.approx(expected)
    assert summary["glue_us"] == pytest.approx(2 + 6.5 + 5)
    assert sum(summary["us_by_kind"].values()) == pytest.approx(summary["gpu_busy_us"])


def test_a_step_of_one_graph_has_nothing_between():
    summary = steps.summarise(one_graph(), STEPS, {"rows", "argmax", "topk"})
    assert summary["graphs_per_step"] == 1
    assert summary["between_per_step"] == 0
    assert summary["program_kernels"] == ["argmax", "rows"]
    assert summary["kernels_by_kind"] == {
        "program": 2,
        "metadata": 1,
        "outside": 1,
        "speculation": 0,
        "torch": 0,
        "forward": 1,
    }
    assert summary["glue_us"] == pytest.approx(3 + 7 + 2 + 1)
    assert len(summary["one_step"]) == 2


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


def test_run_ahead_is_from_the_call_to_the_start():
    """Of a host that issues each step 300 us before the GPU gets to it, and its last copy 20 us before."""
    events = []
    for step in range(STEPS):
        begin = 1000 + step * STEP
        for number, (issued, name, at) in enumerate([(300, "cudaGraphLaunch", 0), (20, "cudaMemcpyAsync", 500)]):
            args = {"correlation": 2 * step + number}
            kernels = [("gemm", begin + at), ("gemm", begin + at + 50)] if at == 0 else [("Memcpy DtoH", begin + at)]
            call = {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": name,
                "ts": kernels[0][1] - issued,
                "dur": 2,
                "args": args,
            }
            events += [
                call,
                *({"ph": "X", "cat": "kernel", "name": n, "ts": t, "dur": 40, "args": args} for n, t in kernels),
            ]
    assert steps.summarise(events, STEPS)["run_ahead_us"] == {"first": 300, "least": 20}


def test_every_variant_with_speculation_has_a_configuration_of_its_sizes(tmp_path):
    """Of both kinds of a program's numbers: those that SGLang is started with, and those it is compiled for."""
    models.main(tmp_path, FOLDER.parents[1] / "examples" / "models")
    configs = {}
    for path in (FOLDER / "configs").glob("*.yaml"):
        config = YAML(typ="safe").load(path)
        assert config["name"] == f"bench_{path.stem}"
        configs[f"specc_program_{config['name']}"] = config
    every = [*variants.VARIANTS.values(), *variants.SHAPED.values(), *variants.BUDGETED.values()]
    assert configs.keys() == {variant.program for variant in every if variant.program}
    drafted = *variants.drafted_variants(), *variants.budgeted_variants()
    for variant in every:
        if variant.program and variant not in drafted:
            check_config(configs[variant.program], variant, tmp_path)


def check_config(config, variant, folder):
    num_steps, topk, *_ = variant.shape
    assert config["algorithm"] == variant.algorithm
    shapes = [
        (shape["num_steps"], shape.get("topk", 1), shape.get("num_draft_tokens", shape["num_steps"] + 1))
        for shape in config.get("shapes", [config])
    ]
    assert tuple(map(max, zip(*shapes, strict=True))) == variant.shape
    room = variant.models.context + 2 * (num_steps + 1)  # for the two steps that end a text
    assert config.get("context_length", room) == room
    assert config.get("page_size", 1) == variant.page_size
    assert tuple(config["buckets"]) == variant.models.rows
    assert config["max_requests"] > max(variant.models.rows)
    assert ("sampling" in config) == (dict(variant.sampling)["temperature"] > 0)
    fa3 = variant.backend == "fa3" or (variant.backend is None and not (variant.written and topk > 1))
    mask = "slots" if fa3 else "full" if variant.backend == "triton" else "qlen"
    assert config.get("mask") == (None if topk == 1 else mask)
    target = json.loads((folder / variant.models.target / "config.json").read_text())
    layers = {"target": target["num_hidden_layers"], "draft": 1}
    if variant.draft:
        layers["draft"] = json.loads((folder / variant.draft / "config.json").read_text())["num_hidden_layers"]
    scored = {"target": target["vocab_size"], "draft": target["vocab_size"]}
    if variant.token_map:
        scored["draft"] = len(torch.load(folder / variant.token_map))
    for name, count in layers.items():
        sizes = config[name]
        assert sizes["num_layers"] == count
        assert sizes["vocab_size"] == scored[name]
        assert sizes["dtype"] == "bfloat16"
    assert config["target"]["hidden_size"] == target["hidden_size"]
    row = target.get("kv_lora_rank", 0) + target.get("qk_rope_head_dim", target.get("head_dim", 0))
    heads = 1 if "kv_lora_rank" in target else target["num_key_value_heads"]
    assert (config["target"]["num_kv_heads"], config["target"]["head_dim"]) == (heads, row)


def test_prompts_have_many_lengths_and_beginnings():
    prompts = text_prompts(FOLDER.parents[1] / "examples" / "models" / "target")
    assert [len(ids) for ids in prompts] == lengths()
    assert (len(prompts), len(prompts[0]), len(prompts[-1])) == (32, 20, 1980)
    assert len({tuple(ids[:20]) for ids in prompts}) == 32


def test_the_mtp_module_of_the_small_model_has_what_transformers_reads_and_what_sglang_does(tmp_path):
    models.small_mla(tmp_path, tmp_path)
    names = load_file(tmp_path / "exmla_target" / "model.safetensors").keys()
    of_module = {name.removeprefix("model.layers.3.") for name in names if name.startswith("model.layers.3.")}
    assert {"eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.head.weight", "mlp.gate.weight"} <= of_module
    assert "mlp.experts.7.down_proj.weight" in of_module
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "exmla_target"))
    assert {name for name in names if "layers.3." not in name} == model.state_dict().keys()
