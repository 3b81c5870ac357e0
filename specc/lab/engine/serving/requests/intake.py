"""What becomes a request: a prompt, when it ends and how it is sampled are checked before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from specc.compiler.support.files.reading import half_character
from specc.lab.engine.errors import BadPromptError, EngineError
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.serving.handover import Handover, Places
from specc.lab.engine.serving.requests.grammar import Grammars
from specc.lab.engine.serving.requests.request import FIRST, Request, StopConditions
from specc.lab.engine.serving.requests.text import Detokenizer, StopText
from specc.runtime.capabilities.sampling import GREEDY, Sampling, carried, check_built
from specc.runtime.errors import SamplingError
from specc.runtime.plan.plan import Plan


@dataclass(frozen=True)
class Intake:
    """Makes requests for a program of `plan` over `target`. `places`: where a handover's keys and values go."""

    plan: Plan
    target: TargetModel
    tokenizer: Any
    places: Places

    @cached_property
    def grammars(self) -> Grammars:
        """What compiles grammars for the target."""
        return Grammars(self.tokenizer, self.target.facts.vocab_size, self.target.eos_token_ids)

    @cached_property
    def _drafts_decide(self) -> bool:
        """Whether a text depends on where steps begin."""
        calls = (call for node in self.plan.nodes("step") for call in getattr(node, "ops", ()))
        return any(call.op == "sample.accept" for call in calls)

    def request(
        self,
        request_id: int,
        prompt: str | Sequence[int],
        conditions: StopConditions | None,
        sampling: Sampling | None,
        handover: Handover | None,
    ) -> Request:
        """One request; raises as `Engine.add`."""
        ids = self.target.check_tokens(self.encode(prompt) if isinstance(prompt, str) else prompt)
        conditions = conditions or StopConditions(eos_token_ids=self.target.eos_token_ids)
        if conditions.stop and self.tokenizer is None:
            raise EngineError("stop strings need a tokenizer")
        text = StopText(Detokenizer(self.tokenizer, ids), conditions.stop) if self.tokenizer is not None else None
        if handover is not None:
            handover.check(self.target.facts.vocab_size, len(ids), scored=self.plan.scores is not None)
            self.places.check(len(ids), handover.kv)
            if sampling is not None:
                raise SamplingError("a handover says itself how the request is sampled")
            sampling = replace(carried(handover.carry) if self.plan.samples else GREEDY, **handover.grammar)
        sampling = GREEDY if sampling is None else sampling.seeded()
        check_built(self.plan, sampling)
        matcher = self.grammars.matcher(sampling)
        if matcher is not None and conditions is not FIRST:  # behind the end of its grammar nothing is restricted
            conditions = replace(conditions, eos_token_ids=conditions.eos_token_ids | self.target.eos_token_ids)
        request = Request(request_id, ids, conditions, text, sampling, handover=handover, matcher=matcher)
        request.resumes = self._drafts_decide
        return request

    def encode(self, text: str) -> list[int]:
        """Tokenise a prompt; raises EngineError without a tokenizer, BadPromptError for what is no text."""
        if self.tokenizer is None:
            raise EngineError("a prompt in text needs a tokenizer; give token ids or a tokenizer")
        if (place := half_character(text)) is not None:
            raise BadPromptError(f"the prompt has half of a character at place {place}")
        return list(self.tokenizer(text)["input_ids"])
