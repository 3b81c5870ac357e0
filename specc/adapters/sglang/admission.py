"""How SGLang's requests are sampled, in a program's terms, and the first token of those that SGLang has prefilled."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

HOTTEST = float(1 << 20)
"""The highest temperature of programs. Tokens are as likely as each other before that."""
SEEDS = (1 << 63) - 1
"""Seeds of programs are from 0 and below; those of SGLang are any integers of 64 bits."""
DETERMINISTIC_SEED = 42
"""What SGLang gives a request without a seed under `--enable-deterministic-inference`."""
_PARAMETERS = "_specc_sampling"


def asked(request: Any, vocabulary: int) -> dict[str, float]:
    """The parameters of a `Req` by a program's names, without those that leave all as it is; none if it is greedy.

    `vocabulary`: tokens of the target. SGLang's greedy requests have a `top_k` of 1, whatever they were given as.
    """
    given = request.sampling_params
    if given.top_k <= 1:
        return {}
    found: dict[str, float] = {"temperature": min(given.temperature, HOTTEST)}
    if given.top_k < vocabulary:
        found["top_k"] = given.top_k
    if given.top_p < 1:
        found["top_p"] = given.top_p
    if given.min_p > 0:
        found["min_p"] = given.min_p
    return found


def lacking(request: Any, vocabulary: int, parameters: Collection[str]) -> str | None:
    """What a request asks for of a program that has these parameters alone; None if nothing is lacking."""
    missing = [name for name in asked(request, vocabulary) if name not in parameters]
    return "sampling" if "temperature" in missing else next(iter(missing), None)


class Admission:
    """Requests on their way into a program that samples, which SGLang prefills: one prefill at a time.

    Args:
        package: the program's.
        step: it, bound.
        default_seed: of requests without one; None: each gets its own.

    """

    def __init__(self, package: Any, step: Any, default_seed: int | None) -> None:
        """Nobody is on the way."""
        self._package, self._step, self._default = package, step, default_seed
        self._largest, self._vocabulary = package.plan.buckets[-1], package.plan.size("V")
        self._places: list[int] = []
        self._rows = self._lengths = torch.empty(0)

    def say(self, batch: Any, served: Collection[int], *, draws: bool = True) -> None:
        """Before a prefill: write into pool rows how those at these places of the batch are sampled.

        Again for a request that was thrown out: it has another row then, and the seed that it had. `draws`: whether the
        program draws the first token of those that are not greedy.
        """
        params = [self._parameters(batch.reqs[place]) for place in served]
        rows = [batch.reqs[place].kv.req_pool_idx for place in served]
        self._step.set_sampling(rows, [self._package.Sampling(**one) for one in params])
        self._places = [place for place, one in zip(served, params, strict=True) if draws and one["temperature"] > 0]
        self._rows, self._lengths = batch.req_pool_indices, batch.seq_lens

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor] | None:
        """Of the prefill's logits f32[b, V] the places i64[n] that the program draws for, and the tokens i32[n].

        None when there is nobody whom it draws for, or when it has drawn for this prefill already.
        """
        places, self._places = self._places, []
        if not places:
            return None
        index = torch.tensor(places).to(logits.device, non_blocking=True)
        tokens = [
            self._step.first_tokens(self._package.Batch(self._rows[part], self._lengths[part]), logits[part]).clone()
            for part in index.split(self._largest)
        ]
        return index, torch.cat(tokens)

    def _parameters(self, request: Any) -> Mapping[str, Any]:
        """Those of a request, the same for its whole life."""
        if not hasattr(request, _PARAMETERS):
            seed = request.sampling_params.sampling_seed
            seed = self._default if seed is None else seed
            seed = secrets.randbelow(SEEDS) if seed is None else seed % SEEDS
            found = {"temperature": 0.0} | asked(request, self._vocabulary) | {"seed": seed}
            setattr(request, _PARAMETERS, found)
        return getattr(request, _PARAMETERS)


def draw_first(sample: Callable[[], Tensor], logits: Tensor, admission: Admission | None) -> Tensor:
    """The tokens [b] that SGLang samples of a prefill's logits f32[b, V], but for requests that a program goes on with.

    For those the program draws, so that a text has one seed and one rule from its first token on, and goes on as it
    would have where it was thrown out. Before SGLang, which makes probabilities of the logits where they are.
    """
    drawn = None if admission is None else admission.draw(logits)
    tokens = sample()
    return tokens if drawn is None else tokens.index_copy(0, drawn[0], drawn[1].to(tokens.dtype))
