"""Requests of all kinds that a program may be built for, and what each of them must answer, in plain torch."""

from __future__ import annotations

import json
import random
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import xgrammar
from engine_prompts import PREAMBLES, TAILS
from head_layouts import EXAMPLES
from sampling_oracle import drawn
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "def"]}, "maxItems": 2},
    },
    "required": ["name", "count", "ok", "tags"],
    "additionalProperties": False,
}
REGEX = "(if|for) [a-z]{3,8}( in [a-z]{2,8}){5,9}:"
JSON = {"json_schema": json.dumps(SCHEMA)}
GRAMMARS = {"grammar_backend": "xgrammar", "constrained_json_disable_any_whitespace": True}
"""Of engines that serve them."""
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "presence_penalty": 0.4},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 0.9, "top_p": 0.85},
    {"temperature": 1.1, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "frequency_penalty": 0.3},
    {"temperature": 0, "frequency_penalty": 0.7, "logit_bias": {"300": 2.5, "17": -100}},
    {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": -0.5},
    {"temperature": 0, **JSON},
    {"temperature": 1.2, "top_k": 30, **JSON},
    {"temperature": 0.9, "regex": REGEX, "frequency_penalty": 1.0},
    {"temperature": 1.0, "top_p": 0.95},
]
LOGPROBS = (0, 11)
"""The kinds that want the log-probabilities of their tokens, and of their prompts."""
COUNT, BURST, AGAIN = 4 * len(KINDS), range(len(KINDS), 28), range(6, 18)
NEAR = 1e-3
"""Added to the score of the token that came: if it was drawn it still is, whatever SGLang's forwards have rounded."""
SEEDS = 1 << 63


def mixed(draw: random.Random) -> list[dict[str, Any]]:
    """COUNT requests of all kinds and seeds, and those of AGAIN again, alone, when all others have ended.

    Those of BURST come at once with long answers, see `sglang_workload`.
    """
    made: list[dict[str, Any]] = []
    for number in range(COUNT):
        burst, kind = number in BURST, KINDS[number % len(KINDS)]
        text = "".join(draw.choices(PREAMBLES, k=0 if burst else draw.choice((0, 1, 2)))) + draw.choice(TAILS)
        length = draw.choice((60, 80) if burst else (1, 8, 24))
        sampling = {**kind, "max_new_tokens": 80 if is_restricted(kind) else length}
        sampling["ignore_eos"] = not burst and not is_restricted(kind)
        sampling["sampling_seed"] = draw.choice((number, draw.randrange(-SEEDS, SEEDS)))
        after = [BURST[0] - 1, 1] if burst else [max(0, number - draw.randint(1, 12)), draw.choice((0, 1, 8))]
        wanted = {"logprobs": True, "top_logprobs": draw.choice((0, 1, 5))} if number % len(KINDS) in LOGPROBS else {}
        made.append({"text": text, "sampling": sampling, **wanted, **({"after": after} if number else {})})
    alone = [made[number] | {"after": [COUNT + place - 1, 1000]} for place, number in enumerate(AGAIN)]
    return made + alone


def is_greedy(sampling: dict[str, Any]) -> bool:
    return sampling["temperature"] == 0 or sampling.get("top_k") == 1


def is_restricted(sampling: dict[str, Any]) -> bool:
    return "json_schema" in sampling or "regex" in sampling


def is_penalized(sampling: dict[str, Any]) -> bool:
    return any(name.endswith("_penalty") for name in sampling)


class Oracle:
    """What a target answers, by transformers, xgrammar and the draws of plain Python."""

    def __init__(self, target: Path = EXAMPLES / "target") -> None:
        """Load the target."""
        self._model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(target)

    def tokens(self, text: str) -> list[int]:
        """Those of a prompt."""
        return self._tokenizer(text).input_ids

    def scores(self, tokens: list[int]) -> Tensor:
        """Logits f32[n, V] after each of some tokens."""
        return self.of_texts(torch.tensor([tokens]))[0]

    def of_texts(self, texts: Tensor) -> Tensor:
        """Logits f32[b, n, V] after each of the tokens of texts i64[b, n]."""
        with torch.no_grad():
            return self._model(texts).logits

    def expected(self, request: dict[str, Any], answer: list[int]) -> list[int]:
        """The token of every place of an answer, given those before it."""
        prompt, sampling = self.tokens(request["text"]), request["sampling"]
        scores = self.changed(self.scores(prompt + answer)[len(prompt) - 1 : -1], sampling, answer)
        filters = {name: sampling[name] for name in ("top_k", "top_p", "min_p") if name in sampling}
        temperature = 0.0 if is_greedy(sampling) else sampling["temperature"]
        seed = sampling.get("sampling_seed", 0) % (SEEDS - 1)
        tokens: list[int] = []
        for place, token in enumerate(answer):
            scores[place, token] += NEAR
            tokens.append(drawn(scores[place].tolist(), seed, temperature, len(prompt) + place, **filters))
        return tokens

    def continued(self, tokens: list[int], length: int) -> list[int]:
        """The most probable tokens behind some, so many."""
        given = torch.tensor([tokens])
        options = {"max_new_tokens": length, "do_sample": False, "eos_token_id": None}
        texts = self._model.generate(given, attention_mask=torch.ones_like(given), **options)
        return texts[0, len(tokens) :].tolist()

    def follows(self, text: str, answer: list[int]) -> bool:
        """Whether each token of a prompt's answer is the most probable one after all before it."""
        return self.follow(self.tokens(text), answer)

    def follow(self, prompt: list[int], answer: list[int]) -> bool:
        """Whether each token behind some is the most probable one after all before it."""
        return self.scores(prompt + answer)[len(prompt) - 1 : -1].argmax(-1).tolist() == answer

    def changed(self, scores: Tensor, sampling: dict[str, Any], answer: list[int]) -> Tensor:
        """Scores f32[n, V] of an answer's places less penalties, for what comes before each, with biases, masked."""
        matcher, words = self._matcher(sampling), -(-scores.shape[1] // 32)
        for place, row in enumerate(scores):
            for token in {*answer[:place]}:
                row[token] -= answer[:place].count(token) * sampling.get("frequency_penalty", 0)
                row[token] -= sampling.get("presence_penalty", 0)
                repetition = sampling.get("repetition_penalty", 1)
                row[token] *= repetition if row[token] < 0 else 1 / repetition
            for token, bias in sampling.get("logit_bias", {}).items():
                row[int(token)] += bias
            if matcher is not None:
                mask = torch.full((1, words), -1, dtype=torch.int32)
                matcher.fill_next_token_bitmask(mask)
                bits = mask[0].repeat_interleave(32) >> torch.arange(32).repeat(words) & 1
                row[bits[: len(row)] == 0] = -torch.inf
                assert matcher.accept_token(answer[place]), (place, answer)
        return scores

    def _matcher(self, sampling: dict[str, Any]) -> Any:
        """The grammar of a request, at its beginning."""
        if "regex" in sampling:
            return xgrammar.GrammarMatcher(self._compiler.compile_regex(sampling["regex"]))
        if "json_schema" in sampling:
            schema = self._compiler.compile_json_schema(sampling["json_schema"], any_whitespace=False)
            return xgrammar.GrammarMatcher(schema)
        return None

    @cached_property
    def _compiler(self) -> Any:
        size, stop = self._model.config.vocab_size, [self._model.config.eos_token_id]
        about = xgrammar.TokenizerInfo.from_huggingface(self._tokenizer, vocab_size=size, stop_token_ids=stop)
        return xgrammar.GrammarCompiler(about)
