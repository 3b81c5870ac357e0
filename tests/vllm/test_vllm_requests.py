"""What requests ask for beyond a text, of vLLM's own speculation and of programs: the same answers, by the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_prompts import PREAMBLES, TAILS
from head_layouts import EXAMPLES
from transformers import AutoTokenizer
from vllm_files import ON_GPU
from vllm_programs import build_program
from vllm_server import ROWS, Served, Variant, serve

pytestmark = pytest.mark.skipif(ON_GPU, reason="its environment has no libraries of grammars")
REGEX = r"[a-z_]{3,9}\([a-z]{1,4}(, [a-z]{1,4}){0,3}\)"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
PENALIZED: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "emitted": {"frequency_penalty": 0.7, "presence_penalty": 0.4},
    "rewarded": {"frequency_penalty": -0.5, "logprobs": 0},
}
SCORED: dict[str, dict[str, Any]] = {"best": {"logprobs": 3}, "chosen": {"logprobs": 0}}
RESTRICTED: dict[str, dict[str, Any]] = {
    "regex": {"structured_outputs": {"regex": REGEX}, "ignore_eos": False, "logprobs": 2},
    "json": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False},
    "choice": {"structured_outputs": {"choice": ["self.name", "self.value", "return None"]}, "ignore_eos": False},
}
ORDER, PROCESSED = "a repetition penalty beside others", "penalties, biases or other processors of logits"
LEFT: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.5}
"""What is vLLM's, for the first of these reasons where a program has penalties, for the other where it has none."""
FORBIDDEN: dict[str, dict[str, Any]] = {
    "long": {"min_tokens": 12, "stop_token_ids": [*range(2, 400, 4)], "logprobs": 1},
    "words": {"bad_words": ["self", "value", " return", "self.value"]},
    "allowed": {"allowed_token_ids": [*range(250, 900)]},
}
PROCESSED_SCORES: dict[str, dict[str, Any]] = {
    "regex": RESTRICTED["regex"],
    "long": FORBIDDEN["long"],
    "words": FORBIDDEN["words"] | {"logprobs": 2},
    "allowed": FORBIDDEN["allowed"] | {"logprobs": 0},
}
"""Whose log-probabilities are of scores without the tokens that they forbid, where these are processed."""
TOKENS = 24
ROUNDS = 2
"""How often each kind is asked for, behind another prompt each time."""
SERVER = {"skip_tokenizer_init": False, "num_gpu_blocks_override": 40, "max_num_batched_tokens": 256}


class Pair(NamedTuple):
    """The same requests served by vLLM alone and with a program."""

    kinds: list[str]
    own: Served
    program: Served


ENGINES: dict[str, tuple[Variant, dict[str, dict[str, Any]], dict[str, Any]]] = {
    "a draft model": (
        Variant("draft_model", "standalone", ahead=True, program=True, drafting="greedy"),
        PENALIZED | SCORED | RESTRICTED | FORBIDDEN, {},
    ),
    "eagle": (Variant("eagle", "eagle", ahead=True, program=True, block=96), SCORED | RESTRICTED | FORBIDDEN, {}),
    "eagle, processed": (
        Variant("eagle", "eagle", ahead=True, program=True), SCORED | PROCESSED_SCORES,
        {"logprobs_mode": "processed_logprobs"},
    ),
}  # fmt: skip
"""Engines, what requests ask of each, and other arguments of its server."""


@pytest.fixture(scope="module", params=ENGINES)
def pair(request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Requests of all kinds in mixed batches, then one that is left to vLLM, alone."""
    variant, kinds, more = ENGINES[request.param]
    folder = tmp_path_factory.mktemp("asked")
    wheel = build_program(variant, models, folder / "wheel")
    names, requests = asked(kinds | {"greedy": {}})
    given = variant.engine(models) | SERVER | more
    own = serve(given, requests, folder / "own")
    return Pair(names, own, serve(given, requests, folder / "mine", wheel=wheel))


def asked(kinds: dict[str, dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """The kinds of requests and the requests, see `serve.py`."""
    tokenize = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    names = [*kinds] * ROUNDS
    made = [request(tokenize, number, kinds[kind]) for number, kind in enumerate(names)]
    alone = request(tokenize, len(made), LEFT) | {"after": [len(made) - 1, 1 << 20]}
    return [*names, ORDER], [*made, alone]


def request(tokenize: Any, number: int, kind: dict[str, Any]) -> dict[str, Any]:
    """A greedy request of a kind; all but the first rows' arrive when one before them has some tokens."""
    text = PREAMBLES[number % len(PREAMBLES)] + TAILS[number % len(TAILS)]
    sampling = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, **kind}
    made: dict[str, Any] = {"prompt": tokenize(text).input_ids[-60:], "sampling": sampling}
    return made | ({"after": [number - ROWS, 8]} if number >= ROWS else {})


def test_texts_are_those_of_vllms_own_step(pair: Pair) -> None:
    for kind, output, own in zip(pair.kinds, pair.program.outputs, pair.own.outputs, strict=True):
        assert output["token_ids"] == own["token_ids"], kind
        assert output["finish_reason"] == own["finish_reason"], kind
        assert output.get("accepted") == own.get("accepted"), kind


def test_log_probabilities_are_those_of_vllms_own_step(pair: Pair) -> None:
    """With the tokens that come with each, and their ranks."""
    compared = 0
    for kind, output, own in zip(pair.kinds, pair.program.outputs, pair.own.outputs, strict=True):
        assert ("best" in output) == ("best" in own), kind
        for here, there in zip(output.get("best", []), own.get("best", []), strict=True):
            assert [logprob[:2] for logprob in here] == [logprob[:2] for logprob in there], kind
            assert [logprob[2] for logprob in here] == pytest.approx([logprob[2] for logprob in there], abs=1e-4), kind
            compared += 1
    assert compared > 4 * TOKENS


def test_texts_obey_grammars(pair: Pair) -> None:
    tokenize = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    choices = RESTRICTED["choice"]["structured_outputs"]["choice"]
    texts = [tokenize.decode(output["token_ids"], skip_special_tokens=True) for output in pair.program.outputs]
    by_kind = {kind: text for kind, text in zip(pair.kinds, texts, strict=True) if kind in RESTRICTED}
    assert by_kind
    assert by_kind.get("choice", choices[0]) in choices
    assert by_kind.get("json", "{").startswith("{")


def test_the_program_ran_them(pair: Pair) -> None:
    counts = pair.program.counts
    assert counts is not None
    left = counts["vllm_steps"]
    assert {*left} == {"a prefill in the batch", ORDER if "repetition" in pair.kinds else PROCESSED}, left
    assert counts["program_steps"] > 2 * left["a prefill in the batch"], counts
