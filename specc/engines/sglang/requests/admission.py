"""How SGLang's requests are sampled, in a program's terms, and the first token of those that SGLang has prefilled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..._drawn import draws_drafts
from ..._plugin import HOTTEST, SEEDS
from ..._shapes import largest

DETERMINISTIC_SEED = 42
"""What SGLang gives a request without a seed under `--enable-deterministic-inference`."""
PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""Those of SGLang that programs have under the same names, and what each of them is where nothing is to change."""
LEAST_REPETITION, MOST_BIAS = 2.0**-10, 100.0
"""The smallest repetition penalty of programs, and the size of their largest bias; SGLang takes others."""
WANTED = dict.fromkeys(PENALTIES, "penalties") | {"logit_bias": "logit bias", "temperature": "sampling"}
"""What those who do not get a parameter are told, where that is another word than its name."""
_PARAMETERS = "_specc_sampling"


def asked(request: Any, vocabulary: int) -> dict[str, Any]:
    """The parameters of a `Req` by a program's names, without those that leave all as it is.

    `vocabulary`: tokens of the target. SGLang's greedy requests have a `top_k` of 1, whatever they were given as.
    """
    given = request.sampling_params
    parameters: dict[str, Any] = {
        name: getattr(given, name) for name in PENALTIES if getattr(given, name) != PENALTIES[name]
    }
    if given.logit_bias:
        parameters["logit_bias"] = {int(token): float(bias) for token, bias in given.logit_bias.items()}
    if given.top_k <= 1:
        return parameters
    parameters["temperature"] = min(given.temperature, HOTTEST)
    if given.top_k < vocabulary:
        parameters["top_k"] = given.top_k
    if given.top_p < 1:
        parameters["top_p"] = given.top_p
    if given.min_p > 0:
        parameters["min_p"] = given.min_p
    return parameters


def lacking(request: Any, vocabulary: int, parameters: Collection[str]) -> str | None:
    """What a request asks for of a program that has these parameters alone; None if nothing is lacking."""
    wanted = asked(request, vocabulary)
    missing = [WANTED.get(name, name) for name in wanted if name not in parameters]
    if wanted.get("repetition_penalty", 1.0) < LEAST_REPETITION:
        missing.append(f"a repetition penalty below {LEAST_REPETITION:g}")
    if not all(-MOST_BIAS <= bias <= MOST_BIAS for bias in wanted.get("logit_bias", {}).values()):
        missing.append(f"a logit bias beyond {MOST_BIAS:g}")
    return "sampling" if "sampling" in missing else next(iter(missing), None)


def seed_of(request: Any) -> int | None:
    """The seed of a `Req` that a program draws for; None of one that it has not been told of."""
    parameters = getattr(request, _PARAMETERS, None)
    return None if parameters is None else parameters["seed"]


class Admission:
    """Requests on their way into a program that samples, which SGLang prefills: one prefill at a time.

    Args:
        package: the program's.
        step: it, bound.
        seeds: draws one for a request that has none, on every rank the same.
        restrict: says whose grammars the next launch of the program obeys, row by row of its batch.

    """

    def __init__(
        self,
        package: Any,
        step: Any,
        seeds: Callable[[], int],
        restrict: Callable[[Sequence[Any]], object] = lambda _: None,
    ) -> None:
        """Nobody is on the way."""
        self._package, self._step, self._seeds, self._restrict = package, step, seeds, restrict
        self._largest, self._vocabulary = largest(package.plans), package.plan.size("V")
        limited = any(plan.shape.budget is not None for plan in package.plans.values())
        self._numbers = count() if limited and draws_drafts(package.plan) else None
        self._places: list[int] = []
        self._batch: Any = None

    def say(self, batch: Any, served: Collection[int], *, draws: bool | None = True) -> None:
        """Before a prefill: write into pool rows how those at these places of the batch are sampled.

        Again for a request that was thrown out: it has another row then, the seed that it had, and what it has emitted
        counts as its output. `draws`: whether the program draws the first tokens of those that are not plain; None
        where no prefill follows, since another server made it.
        """
        requests = [batch.reqs[place] for place in served]
        params = [self._package.Sampling(**self._parameters(request)) for request in requests]
        # SGLang's penalties are for what was emitted, that of repetition too: as if there were no prompt.
        texts = [((), list(request.output_ids)) for request in requests]
        self._step.set_sampling([request.kv.req_pool_idx for request in requests], params, texts)
        self._places = [place for place, param in zip(served, params, strict=True) if draws and not param.plain]
        self._batch = None if draws is None else batch

    def first(self, sample: Callable[[], Tensor], output: Any) -> Tensor:
        """The tokens [b] that SGLang samples of a prefill, but for requests that the program draws for.

        So a text has one seed and one rule from its first token on, and goes on as it would have where it was thrown
        out. `sample` is SGLang's, `output` its LogitsProcessorOutput of the prefill. The program comes first: SGLang
        makes probabilities of the logits where they are.
        """
        batch, places, self._batch, self._places = self._batch, self._places, None, []
        if batch is None:  # not for this prefill, or a second time
            return sample()
        logits, rows = output.next_token_logits, batch.req_pool_indices
        index = torch.tensor(places, dtype=torch.int64).to(logits.device, non_blocking=True)
        drawn = self._drawn(batch, places, index, logits)
        logprobs = _logprobs(logits[index], drawn) if batch.return_logprob else None
        tokens = sample()
        self._step.count(rows, tokens[:, None], torch.ones_like(rows).index_fill(0, index, 0))
        if logprobs is not None:
            output.next_token_logprobs.index_copy_(0, index, logprobs)
        return tokens.index_copy(0, index, drawn.to(tokens.dtype))

    def _drawn(self, batch: Any, places: Sequence[int], index: Tensor, logits: Tensor) -> Tensor:
        """The tokens i32[n] that the program draws at these places, index i64[n], of a prefill's logits f32[b, V]."""
        tokens = [torch.empty(0, dtype=torch.int32, device=logits.device)]
        for start in range(0, len(places), self._largest):
            part = slice(start, start + self._largest)
            here = index[part]
            self._restrict([batch.reqs[place] for place in places[part]])
            some = self._package.Batch(batch.req_pool_indices[here], batch.seq_lens[here])
            tokens.append(self._step.first_tokens(some, logits[here]).clone())
        return torch.cat(tokens)

    def _parameters(self, request: Any) -> Mapping[str, Any]:
        """Those of a request, the same for its whole life.

        But for its seed where requests share the target's rows out by what drafts are drawn from. How many drafts of a
        request are judged must not hang on noise that they are drawn with. So no noise is used twice: not by another
        request of that seed, nor by one that was thrown out and begins anew, whose last step others have seen.
        """
        if not hasattr(request, _PARAMETERS):
            seed = request.sampling_params.sampling_seed
            seed = self._seeds() if seed is None else seed % SEEDS
            parameters = {"temperature": 0.0} | asked(request, self._vocabulary) | {"seed": seed}
            setattr(request, _PARAMETERS, parameters)
        if self._numbers is not None:
            parameters = getattr(request, _PARAMETERS)
            own = hash((parameters["seed"], next(self._numbers))) % SEEDS
            setattr(request, _PARAMETERS, parameters | {"seed": own})
        return getattr(request, _PARAMETERS)


def _logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities f32[n] of tokens [n] in logits [n, V]."""
    return logits.float().log_softmax(-1).gather(1, tokens.long()[:, None])[:, 0]
