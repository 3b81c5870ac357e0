"""What every test folder shares: which tests are slow, the option that rewrites golden files, where helpers are."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

# Triton chooses between interpreting and compiling kernels when it is first imported, and transformers imports it.
if os.environ.get("SPECC_TEST_GPU") != "1":
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Tensors are too small for more threads, and tests run beside each other. Programs that they start inherit it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # pytest-xdist gives its workers 80, which tables would keep to
os.environ.setdefault("SPECC_CACHE_DIR", str(Path(__file__).parents[1] / ".specc-cache"))

HERE = Path(__file__).parent
# programs.py and fakes, and packages of tests that those of other houses take helpers from
sys.path[:0] = [str(HERE), str(HERE / "unit"), str(HERE / "unit/compiler")]

# A runner makes all commands anew of their signatures for each command line, which takes as long as many commands do.
typer.testing._get_command = cache(typer.testing._get_command)

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``, ``--part`` and ``--house``."""
    parser.addoption("--update-golden", action="store_true", help="rewrite kernels_generated/ instead of comparing")
    parser.addoption("--house", help="have no house of specc but this one and what it may import")
    parser.addoption("--part", default="0/1", metavar="K/N", help="of slow tests and engines one of N parts")


FORBIDDEN = {"compiler": ("engines", "lab"), "runtime": ("compiler", "cli", "engines", "lab")}
"""Houses that are not there while the tests of one run."""


class AbsentHouses(MetaPathFinder):
    """Finds nothing of some houses, and has their names fail."""

    def __init__(self, houses: Iterable[str]) -> None:
        self.names = tuple(f"specc.{house}" for house in houses)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for what is in such a house."""
        if fullname.startswith(self.names):
            raise ModuleNotFoundError(f"{fullname} is of another house", name=fullname)


def pytest_configure(config: pytest.Config) -> None:
    """Take houses away."""
    if absent := FORBIDDEN.get(config.getoption("house") or ""):
        sys.meta_path.insert(0, AbsentHouses(absent))


SLOW = re.compile(
    r"aot/|browser/|changes/test_changes\.py::test_a_change_works|compose/|e2e/|fuzz/|property/"
    r"|kernels/test_(vocab\.py::test_(topk|reductions_are_stored|groups_of_long)|prologue|drafting)"
    r"|kernels/test_shards\.py::test_(programs|every_rank_has_the_bits_of_one\[[^]]*(2999|topk)|numbers_of_a_reduced\w+\[[^]]*topk)"
    r"|kernels/test_(sample|score|reject|cut|brought_tiles)\.py::\w+\[cpu-(f16|f32)|kernels/test_reject\.py::test_masses\[|kernels/test_row\.py|gpu/test_interpreted"
    r"|kernels/test_(reject\.py::test_drafts_of_a_part|shared_heads\.py::test_every_rank)|unit/lab/commands/test_bench\.py::test_times_of_shapes|unit/cli/test_explain_shapes\.py::test_a_program_knows"
    r"|kernels/test_walk\.py::test_(kernels_of_both|both_forms)|unit/lab/measure/test_tune|unit/lab/measure/test_against|unit/lab/bench/test_trained"
    r"|kernels/test_(tree|frontiers)\.py::test_(frontiers|with_the_last|ties_go|flat_masks)|kernels/test_commit\.py::test_random"
    r"|meta/test_determinism\.py::test_wheels|unit/cli/test_(streams|transcripts)|unit/lab/engine/test_causal_types"
    r"|unit/runtime/test_(rejection|sampling|distribution|distribution_of_shapes)\.py::test_(a_million\w*_draws|a_bias_is_noticed|texts_of)|unit/lab/engine/test_drafts\.py::test_shared_pages"
    r"|unit/runtime/test_(torn\.py::test_every_node_of_a_step\[\S+-False|transfer\.py::test_a_moved_request\w+\[False)"
    r"|unit/runtime/test_rotated_shapes\.py::test_any_shape\w+\[(STANDALONE|EAGLE3|FROZEN_KV_MTP)"
    r"|unit/engines/test_sglang_shapes\.py::test_texts_are_the_targets_own\w+\[\w+-shapes[2-5]-\w+-True"
    r"|unit/compiler/algorithms/test_launches\.py::test_(no_step|a_grammar)\w+\[(STANDALONE|EAGLE3)-1|unit/cli/test_subjects\.py::test_a_plan_says_all"
    r"|unit/runtime/test_distribution\.py::test_depths\w+\[.*(target_only|rejection)"
    r"|unit/compiler/explain/test_page\.py::test_the_same_bytes|unit/runtime/test_(damaged_json\.py::test_plans\[tree|reference_on_device\.py::test_every_reference)|unit/cli/test_inspect\.py::test_several|unit/lab/measure/test_output\.py::test_the_picture|kernels/test_commit\.py::test_links|kernels/test_brought_tiles\.py::test_the_prologue|unit/lab/engine/test_engine\.py::test_steps_accept\w+\[stranger-False-4"
    r"|unit/cli/test_progress\.py::test_a_terminal\w+\[(build|hot)|unit/lab/commands/test_bench_serve_command\.py::test_whoever\w+\[[12]\]"
    # Drafts of other models without any memory, in test_drafts.py and test_engine.py, find what these do.
    r"|unit/lab/engine/test_trained\.py"
    # One of a grid stands for the others: they take the same way with other sizes.
    # The cache, a build without a compiler and servers that a command starts are tried by others of their files.
    r"|aot/test_cache\.py::test_damaged_entries|unit/lab/commands/test_bench\.py::test_without_a_compiler\[None|unit/cli/test_(subjects\.py::test_a_wheel_stands|inspect\.py::test_a_wheel_and)"
    r"|unit/lab/commands/test_bench_serve_command\.py::test_(a_server_that_(never|does_not)|texts_that_differ|the_table_says|a_program_that_is_switched)"
    r"|unit/engines/test_sglang_shapes\.py::test_what_is_drawn|kernels/test_head\.py::test_argmax_and_topk\w+\[cpu-\((800|1000,.200,.64)"
    r"|unit/compiler/algorithms/test_launches\.py::test_a_grammar\w+\[EAGLE-1"
    r"|unit/runtime/test_(torn\.py::test_every_node_of_a_prefill\[MULTI|distribution\.py::test_depths\w+\[\(0, 2\))"
    r"|unit/engines/test_(vllm_steps\.py::test_blocks_of_a_size\w+\[(STANDALONE|MULTI)|sglang_shapes\.py::test_a_drawn_length\w+\[(2\.2|3\.9|2\.8))"
    r"|unit/cli/test_init_shapes\.py::test_a_server_of_sglang\[h100-(EAGLE3|STANDALONE)|unit/engines/command_line/test_sglang_groups\.py::test_a_group\w+\[changes[0-2]"
    r"|unit/lab/engine/test_engine\.py::test_(steps_accept\w+\[stranger-True-4|shared_beginnings\w+\[twin-(1|4)\])|unit/runtime/test_rejection\.py::test_extreme_rows\[(1e-06|1\.0)"
    r"|unit/runtime/test_distribution_of_policies\.py::test_(what_was|a_drawn_draft_may)\w+\[block"
    r"|kernels/test_(reject\.py::test_extreme_rows\[cpu-4|shards\.py::test_every_rank_has_the_bits_of_one\[cpu-90of96)"
)
"""What `make test` leaves out: machine code, texts of real models, random programs, pages in a browser, millions of
draws, whatever else took five seconds of a processor, and of long sweeps what other tests of the sweep stand for. A
test stands here by its folder, its file or its name. Coupled drafts of a real model are slow as well: unit/algorithms
and unit/adapters have them on made-up ones."""
QUICK = {
    "aot/test_adapter_kernels.py": "",
    "aot/test_cache.py": r"(?!test_damaged)",
    "aot/test_compile.py": r"(?!test_(bytes_do_not|the_comment|nothing_of|the_assembler\w+\[sm_100))",
    "e2e/test_generate.py": r"test_text_equals_generate\[(\w+_trained_p1_s3_o_auto|eagle\w+_k4_n16_qlen"
    r"|eagle3\w+_reduced_weights|ngram\w+_corpus)\]",
    "e2e/test_grammar.py": r"(?!test_texts\w+\[(True|\S+multi|False-eagle-2)|test_(with_filters|a_free|row|every)"
    r"|test_at_changing\w+\[False|test_(retracted|where)\w*\[tree)",
    "e2e/test_metrics.py": "",
    "e2e/test_penalties.py": r"(?!\w+\[(tree|look-up|block|modules)|test_row|test_at_changing"
    r"|test_after_a_failure\[(prefill|extend))",
    "e2e/test_sampling.py": r"test_(texts\w+\[False-(standalone|eagle-2|ngram)|row\w+\[standalone-"
    r"|after_a_handover|drawn\w+\[chain|only|the_oracle|a_seed|what)",
    "e2e/test_site_html.py": "",
    "unit/cli/test_subjects.py": r"test_a_plan_says_all\w+\[(eagle-tree-and-chain|eagle3-reduced"
    r"|standalone-chain-rotated|(mtp|dflash|ngram|frozen-kv)-\w+\])",
    "unit/cli/test_transcripts.py": r"\w+\[(eagle|qwen)-80\]",
    "unit/runtime/test_distribution.py": r"test_a_bias_is_noticed\[(warm|left|drafts)",
}
"""What of that it runs all the same, by file: texts of one model by every algorithm, and one of each kind besides."""


ELSEWHERE = ("browser", "conformance", "sglang", "vllm")
"""Folders that need more than `make setup` installs: they are read where ``-m`` or a path names them."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders that nobody asks for, and of `make test` folders and files without a test that it runs."""
    marks, name = config.getoption("markexpr"), collection_path.relative_to(HERE).as_posix()
    if name in ELSEWHERE:
        return True if name not in marks else None
    name += "/" * collection_path.is_dir()
    slow = name == "gpu/" or (SLOW.match(name) and not any(file.startswith(name) for file in QUICK))
    return True if marks == "not slow" and slow else None


def is_slow(name: str) -> bool:
    """Whether the lists have a test among the slow ones."""
    file, _, test = name.partition("::")
    return bool(SLOW.match(name)) and not (file in QUICK and re.match(QUICK[file], test))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what is slow, in one place, and keep the part that is asked for of what takes long and ``-m`` leaves."""
    seen: set[tuple[str, str, int]] = set()
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        values = values_of(item)
        if is_slow(name) or (values and values <= seen):
            item.add_marker(pytest.mark.slow)
        else:
            seen |= values
    yield
    part, parts = (int(number) for number in config.getoption("part").split("/"))
    if parts > 1:
        groups = {item: kept_together(item) for item in items if takes_long(item)}
        kept = set([*dict.fromkeys(groups.values())][part % parts :: parts])
        left_out = {item for item, group in groups.items() if group not in kept}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def values_of(item: pytest.Item) -> set[tuple[str, str, int]]:
    """The values of a test's parameters: of a grid, `make test` runs the cases that have one for the first time."""
    test = item.nodeid.partition("[")[0]
    return {(test, name, id(value)) for name, value in params_of(item).items()}


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what lasts: tests, and the modules that they import."""
    gc.collect()
    gc.freeze()


def takes_long(item: pytest.Item) -> bool:
    """Whether a test is slow or runs in an engine."""
    return item.get_closest_marker("slow") is not None or item.path.parent.name in ("sglang", "vllm")


def kept_together(item: pytest.Item) -> str:
    """Name the engine or family of a test, the same for what it is compared with; any other has a name of its own."""
    if item.path.parent.name not in ("sglang", "vllm"):
        return item.nodeid
    params = params_of(item)
    if "family" in params:  # two files may have one of the same name
        return f"{item.path.name} {params['family']}"
    engines = [str(params[name]) for name in ("variant", "ranked") if name in params]
    return engines[0].replace("-program", "") if engines else item.path.name


def params_of(item: pytest.Item) -> Mapping[str, object]:
    """The parameters of a test by name; none where it has none."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
