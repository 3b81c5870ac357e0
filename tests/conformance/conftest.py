"""Both sides' answers, each computed once per run in a process of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from folder_items import items_below

from . import cases as cases_module
from . import oracle_files, reference

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Answers:
    """Cases by kind; SGLang's answers to them; specc's, by side: `kernels` and `reference`."""

    cases: Mapping[str, list[Any]]
    oracle: Mapping[str, list[Any]]
    specc: Mapping[str, Mapping[str, list[Any]]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything in this folder, and skip it unless it is asked for."""
    asked = "conformance" in config.getoption("markexpr")
    for item in items_below(HERE, items):
        item.add_marker(pytest.mark.conformance)
        if not asked or not oracle_files.READY.exists():
            item.add_marker(pytest.mark.skip(reason="needs SGLang's environment: run `make conformance`"))


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Run SGLang's kernels and specc's side by side, and specc's reference ops here."""
    folder = tmp_path_factory.mktemp("conformance")
    given, ours = folder / "cases.pt", folder / "ours.pt"
    all_cases = cases_module.all_cases()
    torch.save(all_cases, given)
    kept = known_answers()
    running = [start([sys.executable, str(HERE / "ours.py"), str(given), str(ours)], {"PYTHONPATH": str(ROOT)})]
    oracle_path = folder / "oracle.pt"
    if kept.exists():
        oracle_path = kept
    else:
        command = [str(oracle_files.PYTHON), "-E", str(HERE / "oracle.py"), str(given), str(oracle_path)]
        running.append(start(command, {}))
    kinds = {"chain": reference.chain, "argmax": reference.argmax, "tree": reference.tree, "reject": reference.reject}
    with one_thread():
        referred = {name: [kinds[name](case) for case in group] for name, group in all_cases.items()}
    finished = [(process.communicate()[0], process) for process in running]
    if oracle_path.exists():
        keep(oracle_path, kept)
    for output, process in finished:
        if process.returncode:
            pytest.fail(f"{process.args} exited with {process.returncode}\n{output}", pytrace=False)
    oracle = torch.load(oracle_path, weights_only=True)
    kernels = torch.load(ours, weights_only=True)
    return Answers(all_cases, oracle, {"kernels": kernels, "reference": referred})


@contextmanager
def one_thread() -> Iterator[None]:
    """The other programs need the processors; tensors are too small for more than one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def known_answers() -> Path:
    """Where SGLang's answers are kept: they depend on the cases, on the oracle and on nothing of specc."""
    parts = [
        (HERE / name).read_bytes()
        for name in ("cases.py", "tree_cases.py", "reject_cases.py", "oracle.py", "plain_triton.py")
    ]
    parts += [oracle_files.READY.read_bytes(), torch.__version__.encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return oracle_files.ANSWERS / f"answers-{digest}.pt"


def keep(fresh: Path, kept: Path) -> None:
    """Keep new answers, in one step, in place of older ones."""
    if fresh == kept:
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in kept.parent.glob("answers-*.pt"):
        old.unlink(missing_ok=True)
    unfinished = kept.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(fresh.read_bytes())
    unfinished.replace(kept)


def start(command: list[str], more: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a program in which Triton interprets."""
    environment = {name: value for name, value in os.environ.items() if name != "SPECC_TEST_GPU"}
    environment |= {"TRITON_INTERPRET": "1", **more}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
