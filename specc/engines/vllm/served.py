"""What of a server programs serve and what they do not, from plain facts of it: the one list of both.

The adapter asks when a server starts, with facts of vLLM's objects; the compiler asks before there is one, with what
arguments and two model directories say, or vLLM's own code for arguments. Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .kinds import (
    ALGORITHMS,
    ASSISTANTS,
    KINDS,
    METHODS,
    SEVERAL_MODULES,
    KindOfDraft,
    Method,
    is_assistant,
    kind_of,
)

__all__ = [
    "ADAPTIVE",
    "ALGORITHMS",
    "BLOCK",
    "KINDS",
    "METHODS",
    "OWN_LAYERS",
    "PROBABILISTIC",
    "SETTINGS",
    "SPECULATIVE",
    "TESTED",
    "KindOfDraft",
    "Method",
    "Refusal",
    "Server",
    "facts",
    "is_assistant",
    "kind_of",
    "own_layers",
    "refusals",
    "turns",
]

TESTED = ("0.32.0", "0.33.0")
"""The versions of vLLM that `make vllm` runs programs in."""
OWN_LAYERS = {
    "DeepseekV4For": "models.deepseek_v4.attention.DeepseekV4Attention",
    "DeepseekV41For": "models.deepseek_v41.attention.DeepseekV4Attention",
}
"""How the names of classes begin whose layers have attention of their own, over compressed rows and a window -> that.

Layers of their drafts have the window alone, in blocks of its own.
"""


def own_layers(architecture: str) -> str | None:
    """Return the key of `OWN_LAYERS` that the name of a class begins with; None for any other class."""
    return next(filter(architecture.startswith, OWN_LAYERS), None)


class Setting(NamedTuple):
    """A setting of a server of which some values are served.

    Attributes:
        part: the attribute of vLLM's VllmConfig that has it; an empty text for the VllmConfig itself.
        served: the value, or several in a tuple, vLLM's own first.
        what: what any other asks for.

    """

    part: str
    served: object
    what: str

    @property
    def values(self) -> tuple[object, ...]:
        """All that are served."""
        return self.served if isinstance(self.served, tuple) else (self.served,)


PARALLEL, SPECULATIVE, MODEL, WHOLE = "parallel_config", "speculative_config", "model_config", ""
"""Parts of a VllmConfig, which itself is the last; there a setting may be missing where nobody has set it."""

PROBABILISTIC, BLOCK = "probabilistic", "block"
"""How drafts are drawn that are weighed by what they were drawn from, and weighed all of a step together."""

ADAPTIVE = "enable_adaptive_verification"
"""The setting by which a step verifies as many drafts of each request as its confidence is worth."""

SETTINGS: Mapping[str, Setting] = {
    "pipeline_parallel_size": Setting(PARALLEL, 1, "pipeline parallelism"),
    "data_parallel_size": Setting(PARALLEL, 1, "data parallelism"),
    "prefill_context_parallel_size": Setting(PARALLEL, 1, "context parallelism of prefill"),
    "decode_context_parallel_size": Setting(PARALLEL, 1, "context parallelism of decode"),
    "use_ubatching": Setting(PARALLEL, False, "microbatches"),
    "enable_batch_sharded_sampling": Setting(PARALLEL, False, "sampling in which each rank has a part of the batch"),
    "enable_eplb": Setting(PARALLEL, False, "experts that move between ranks"),
    "draft_sample_method": Setting(SPECULATIVE, ("greedy", PROBABILISTIC), "drafts that are drawn"),
    "rejection_sample_method": Setting(SPECULATIVE, ("standard", BLOCK), "another rejection sampler"),
    ADAPTIVE: Setting(SPECULATIVE, (False, True), "adaptive verification"),
    "use_local_argmax_reduction": Setting(SPECULATIVE, False, "the most probable token of each rank's own logits"),
    "parallel_drafting": Setting(SPECULATIVE, False, "drafts that are all made in one forward"),
    "return_sampling_mask": Setting(MODEL, False, "sampling masks"),
    "watermark_config": Setting(WHOLE, None, "watermarks"),
}
"""Setting of vLLM's -> where it is, what is served, and what any other asks for."""


@dataclass(frozen=True)
class Server:
    """Facts of a server; what is not known is left out, and is in nobody's way.

    Attributes:
        method: vLLM's word for how it drafts, after it has settled it.
        modules: of multi-token prediction, as many as draft one after the other.
        rounds: how often these do in a step.
        assistant: whether an assistant drafts, which reads the target's own keys and values.
        first_runner: why vLLM takes its first model runner; an empty text where it takes the second.
        settings: by vLLM's name what `SETTINGS` has a word on.

    """

    method: str | None = None
    modules: int = 1
    rounds: int = 1
    assistant: bool = False
    first_runner: str = ""
    settings: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def drafting(self) -> str | None:
        """How drafts are made: vLLM's method, and what drafts, where that is another form than others of it."""
        return f"{self.method} of {self._form}" if self._form else self.method

    @property
    def kind(self) -> KindOfDraft | None:
        """That of its drafts; None where no program has it."""
        return kind_of(self.method, self._form)

    @property
    def algorithm(self) -> str | None:
        """That of a program that drafts so; None where there is none."""
        return self.kind and self.kind.algorithm(self.method)

    @property
    def weighs(self) -> str | None:
        """The `verify` of a program that draws drafts, and weighs them, as vLLM does; None where none are drawn."""
        if self.settings.get("draft_sample_method") != PROBABILISTIC:
            return None
        return "block" if self.settings.get("rejection_sample_method") == BLOCK else "rejection"

    @property
    def adaptive(self) -> bool:
        """Whether steps verify other numbers of drafts of each request, which the device alone knows."""
        return bool(self.settings.get(ADAPTIVE))

    @property
    def _form(self) -> str:
        """The form of its drafts, as kinds have it."""
        if self.assistant:
            return ASSISTANTS.form
        return SEVERAL_MODULES.form if self.modules > 1 else ""


def turns(method: str | None, modules: int, drafts: int) -> tuple[int, int]:
    """How many modules draft one after the other, and how often, of all that a draft has, for so many drafts a step."""
    used = max(1, min(modules, drafts)) if kind_of(method, SEVERAL_MODULES.form) else 1
    return used, -(-drafts // used) if used > 1 else 1


def facts(config: Any) -> Server:
    """The facts of the server of a VllmConfig, as far as its speculator does not show them."""
    spec = config.speculative_config
    draft = spec.draft_model_config.hf_config
    modules, rounds = turns(
        spec.method, getattr(draft, "num_nextn_predict_layers", None) or 1, spec.num_speculative_tokens
    )
    parts = {name: getattr(config, name) for name in (PARALLEL, SPECULATIVE, MODEL)} | {WHOLE: config}
    settings = {name: _said(parts[setting.part], name, setting) for name, setting in SETTINGS.items()}
    assistant = is_assistant(getattr(draft, "model_type", ""))
    return Server(spec.method, modules, rounds, assistant, settings=settings)


def _said(part: Any, name: str, setting: Setting) -> Any:
    return getattr(part, name, setting.values[0]) if setting.part == WHOLE else getattr(part, name)


@dataclass(frozen=True)
class Refusal:
    """Something that is not served.

    Attributes:
        about: the name of what would have to change: one of `SETTINGS`, or another field of `Server`.
        what: it, in a few words, a noun.

    """

    about: str
    what: str

    def __str__(self) -> str:
        """In a sentence."""
        return f"{self.what} is not served"


def refusals(server: Server) -> Iterator[Refusal]:
    """All that is in the way of any program on a server; nothing where programs are served."""
    if server.first_runner:
        yield Refusal("first_runner", f"vLLM's first model runner ({server.first_runner})")
    if server.method is not None and server.algorithm is None:
        yield Refusal("method", f"the method {server.drafting}")
    if server.rounds > 1:
        yield Refusal("rounds", f"drafting by {server.modules} modules more than once in a step")
    if server.weighs and server.kind is not None and not server.kind.draws:
        yield Refusal("draft_sample_method", f"drafts that are drawn with the method {server.drafting}")
    if server.adaptive and server.kind is not None and not server.kind.estimates:
        yield Refusal(ADAPTIVE, f"adaptive verification with the method {server.drafting}")
    for name, value in server.settings.items():
        setting = SETTINGS[name]
        if server.kind is not None and name in server.kind.settles:
            continue
        if all((value or None) != (served or None) for served in setting.values):
            plain = isinstance(value, int | str) and value is not True
            yield Refusal(name, f"{setting.what} ({name}{f' {value}' if plain else ''})")
