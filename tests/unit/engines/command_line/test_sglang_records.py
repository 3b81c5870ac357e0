"""`specc sglang check` of servers over recurrent states: records of these, planned places, adapters of requests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .sglang_words import run

SERVED = Path(__file__).parents[3] / "published" / "served"
GDN, KDA, MAMBA2 = "Qwen3.6-27B-FP8", "Kimi-K3", "Nemotron-3-Super-120B-A12B"
ALGORITHMS = {GDN: "NEXTN", KDA: "NGRAM", MAMBA2: "NEXTN"}
RECORDS, KEPT = "--enable-linear-replayssm-spec", "--mamba-radix-cache-strategy"
ADAPTERS = "--enable-lora --lora-target-modules all --max-lora-rank 8"
PLACE = "a prefix's state without the records behind it, where texts end, is not served"
CHAIN = {
    "NEXTN": "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    "NGRAM": "--speculative-ngram-max-bfs-breadth 1 --speculative-num-draft-tokens 4",
}


def asked(target: str, more: str, *options: str, algorithm: str = "") -> tuple[int, str, str]:
    """Return how the command ends for such a server on an H100, what it writes and what it says."""
    algorithm = algorithm or ALGORITHMS[target]
    words = f"--model-path {SERVED / target} --speculative-algorithm {algorithm} {CHAIN[algorithm]}"
    result = run("--gpu", "h100", *options, "--", *f"{words} --trust-remote-code --dtype bfloat16 {more}".split())
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("target", ALGORITHMS)
def test_servers_that_are_served(target: str) -> None:
    """Nothing of it is in the configuration: SGLang commits states of either kind in the program's step."""
    usual = asked(target, "")
    for more in (RECORDS, f"{KEPT} extra_buffer_lazy", f"{RECORDS} {KEPT} extra_buffer_lazy", ADAPTERS):
        code, written, said = asked(target, more)
        assert code == usual[0] == 0, said
        assert yaml.safe_load(written) == yaml.safe_load(usual[1])


@pytest.mark.parametrize(
    ("more", "whole"),
    [
        (f"{KEPT} no_buffer", False),
        ("--disable-overlap-schedule", False),
        ("--disable-overlap-schedule --page-size 1", False),
        ("--disable-overlap-schedule --page-size 16", True),
        (f"--disable-overlap-schedule {KEPT} extra_buffer", True),
        ("--disable-overlap-schedule --disable-radix-cache", True),
        (f"--disable-radix-cache {KEPT} no_buffer", True),
    ],
)
def test_states_of_prefixes_have_all_records(more: str, whole: bool) -> None:
    """SGLang keeps those of GDN where texts end as they were before the last records; KDA and Mamba-2 have none."""
    code, _, said = asked(GDN, f"{RECORDS} {more}")
    assert (code, PLACE in said) == ((0, False) if whole else (1, True))
    assert whole or "hint: write --mamba-radix-cache-strategy extra_buffer, or --disable-radix-cache" in said
    for target, flag in ((GDN, ""), (KDA, RECORDS), (MAMBA2, RECORDS)):
        assert asked(target, f"{flag} {more}")[0] == 0


def test_rings_have_room_for_a_step_of_one_length() -> None:
    """As SGLang keeps it free; more nodes than records are cut off without a word."""
    code, _, said = asked(GDN, f"{RECORDS} --linear-replayssm-cache-len 2")
    assert code == 1 and "--linear-replayssm-cache-len 2 with steps of 4 nodes is not served" in said
    assert asked(GDN, f"{RECORDS} --linear-replayssm-cache-len 4")[0] == 0
    assert asked(GDN, "--linear-replayssm-cache-len 2")[0] == 0
    code, _, said = asked(GDN, f"{RECORDS} --speculative-adaptive")
    assert code == 1 and "adaptive speculation with rings of records, which have room" in said
    assert asked(GDN, RECORDS, "--shapes", "3,1,0")[0] == 0


def test_sglang_changes_no_number_of_steps_over_states_that_it_misplaces() -> None:
    """A program of several shapes changes it there, by its own policy."""
    code, _, said = asked(MAMBA2, "--speculative-adaptive")
    assert code == 1 and "adaptive speculation with states of Mamba-2, which SGLang's own shorter steps leave" in said
    assert asked(GDN, "--speculative-adaptive")[0] == 0
    assert asked(MAMBA2, "", "--shapes", "3,1,0")[0] == 0


@pytest.mark.parametrize("target", ALGORITHMS)
def test_a_program_copies_no_records(target: str) -> None:
    code, _, said = asked(target, RECORDS, "--states", "select")
    assert code == (0 if target == MAMBA2 else 1), said
    assert target == MAMBA2 or f"--states select with {RECORDS} is not served" in said
    assert asked(target, f"{KEPT} extra_buffer_lazy", "--states", "select")[0] == 0
