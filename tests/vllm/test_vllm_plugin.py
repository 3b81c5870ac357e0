"""The plugin of docs/plugins.md in the place of vLLM's EAGLE: a token that stands in texts often is never drafted."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from pathlib import Path

from engine_job import specc
from head_layouts import EXAMPLES
from plugin_page import install_page
from transformers import AutoTokenizer
from vllm_programs import write_program
from vllm_server import PLAIN, Variant, serve
from vllm_workload import PREAMBLES, TAILS, greedy

TOKENS = 48
VARIANT = Variant("eagle", "eagle", ahead=True, program=True)


def test_steps_are_the_plugins_and_texts_the_targets(models: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    prompts = [tokenizer(first + last).input_ids for first, last in zip(PREAMBLES * 2, TAILS, strict=False)]
    requests = [greedy(prompt, TOKENS) for prompt in prompts]  # one at a time: steps beside a prefill are vLLM's own
    requests = [
        request | ({"after": [number - 1, TOKENS]} if number else {}) for number, request in enumerate(requests)
    ]
    plain = serve(PLAIN.engine(models), requests, tmp_path / "plain")
    [(never, _)] = Counter(token for output in plain.outputs for token in output["token_ids"]).most_common(1)
    install_page(tmp_path)
    config = write_program(VARIANT, models, tmp_path / "wheel")
    text = config.read_text().replace("algorithm: EAGLE", "algorithm: SOBER")
    config.write_text(f"{text}options: {{never: {never}}}\n")
    specc("build", str(config), "-o", str(config.parent), "--quiet", beside=tmp_path)
    [wheel] = config.parent.glob("*.whl")
    served = serve(VARIANT.engine(models), requests, tmp_path / "job", wheel=wheel)
    assert [output["token_ids"] for output in served.outputs] == [output["token_ids"] for output in plain.outputs]
    emitted = drafted = 0
    for output in served.outputs:
        tokens, lengths = output["token_ids"], output["accepted"]
        for number, (begin, length) in enumerate(zip(accumulate(lengths, initial=1), lengths, strict=False)):
            emitted += tokens[begin : begin + length].count(never)
            if number:  # the first step has drafts of vLLM's
                drafted += length - 1
                assert never not in tokens[begin : begin + length - 1]
    assert emitted > 20 and drafted > 100
