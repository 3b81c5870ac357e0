"""What can be said of the programs' kernels without a GPU: in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from fakes import extremes
from fakes.toys import ALONE, LAUNCHED, ROTATED, SAMPLED, TOYS

from .conftest import ROOT
from .interpreted import check, check_given_rows, check_tuned, check_without_drafts, crowd, extremes_of

SLOW = "toy_ngram_tree"
"""Half a minute with texts as long as its mask."""


@pytest.mark.skipif(os.environ.get("SPECC_TEST_GPU") == "1", reason="kernels are compiled in this process")
@pytest.mark.parametrize("name", [*(toy.name for toy in (*TOYS, LAUNCHED)), "eagle-chain-head"])
def test_every_launch(name: str) -> None:
    torch.set_num_threads(1)
    check(name)


@pytest.mark.skipif(os.environ.get("SPECC_TEST_GPU") == "1", reason="kernels are compiled in this process")
@pytest.mark.parametrize("name", [toy.name for toy in (*ROTATED, SAMPLED)])
def test_every_launch_of_a_rotated_program(name: str) -> None:
    """Of tables that the engine writes, and of logits in rows that it pads."""
    torch.set_num_threads(1)
    check(name)


@pytest.mark.skipif(os.environ.get("SPECC_TEST_GPU") == "1", reason="kernels are compiled in this process")
@pytest.mark.parametrize("name", [toy.name for toy in ALONE if toy.algorithm != "MULTI_LAYER_EAGLE"])
def test_every_launch_of_a_step_without_drafts(name: str) -> None:
    torch.set_num_threads(1)
    check_without_drafts(name)


@pytest.mark.skipif(os.environ.get("SPECC_TEST_GPU") == "1", reason="kernels are compiled in this process")
@pytest.mark.parametrize("name", [toy.name for toy in ALONE if toy.name != SLOW])
def test_requests_without_room(name: str) -> None:
    torch.set_num_threads(1)
    crowd(name)


@pytest.mark.skipif(os.environ.get("SPECC_TEST_GPU") == "1", reason="kernels are compiled in this process")
@pytest.mark.parametrize("mode", extremes.MODES)
def test_extreme_rows(mode: str) -> None:
    torch.set_num_threads(1)
    extremes_of(mode)


@pytest.mark.skipif(os.environ.get("SPECC_TEST_GPU") == "1", reason="kernels are compiled in this process")
@pytest.mark.parametrize("name", ["toy_standalone", "toy_tree_paged"])
def test_every_launch_with_other_tiles_and_splits(name: str) -> None:
    torch.set_num_threads(1)
    check_tuned(name)


@pytest.mark.skipif(os.environ.get("SPECC_TEST_GPU") == "1", reason="kernels are compiled in this process")
@pytest.mark.parametrize("verify", ["greedy", "target_only", "rejection", "block"])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_rows_that_the_engine_gives(algorithm: str, verify: str) -> None:
    torch.set_num_threads(1)
    check_given_rows(algorithm, verify)


def test_every_way_of_running_gives_the_same_text() -> None:
    assert run(str(ROOT / "bench" / "between.py"), "--check-only").count("same text") == 7


def run(*command: str) -> str:
    """The output of a Python program; its messages when it fails."""
    folders = [
        *(str(ROOT / folder) for folder in ("", "tests")),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(folders)}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    words = [sys.executable, *command]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
