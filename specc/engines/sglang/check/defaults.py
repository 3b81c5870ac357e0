"""What SGLang 0.5.23 takes where its command line says nothing: attention backend, page, shape, draft, graphs.

SGLang chooses the backend before the shape, so a tree that nobody has written is none yet where the backend is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from specc.compiler.config.archs import Gpu
from specc.engines.sglang.served import backend_of

HOPPER = ("sm_90",)
B200 = ("sm_100", "sm_103")
BLACKWELL = (*B200, "sm_120")

UNWRITTEN, CHAIN, PAGED, TREE = "unwritten", "chain", "paged chain", "tree"
"""What is known of the drafts when the backend is chosen: nothing, a chain, one on pages that are written, a tree."""


def drafts(topk: int | None, page_size: int | None) -> str:
    """Return what SGLang knows of the drafts where ``--speculative-eagle-topk`` and ``--page-size`` say this."""
    if topk is None:
        return UNWRITTEN
    chain = CHAIN if page_size in (None, 1) else PAGED
    return chain if topk == 1 else TREE


@dataclass(frozen=True)
class Default:
    """An attention backend that SGLang takes by itself: the first whose conditions hold; an empty one always does.

    Attributes:
        backend: its name.
        archs: GPUs.
        caches: layouts of the target's KV cache.
        architectures: what the name of the target's class begins with, a regular expression.
        drafts: what is known of them.
        deterministic: whether it is for ``--enable-deterministic-inference``.
        page_size: tokens per page that come with it.
        forced: whether they do though others are written.
        decode: the decode backend, where it is another.
        draft: the draft's, where it is another.

    """

    backend: str
    archs: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    architectures: str = ""
    drafts: tuple[str, ...] = ()
    deterministic: bool = False
    page_size: int | None = None
    forced: bool = False
    decode: str | None = None
    draft: str | None = None


_DEEPSEEK = r"DeepseekV3|KimiK25|MistralLarge3|Pixtral|LongcatFlash|Dots3Note"
_SINKS = r"GraniteSWA|GraniteMoeSWA|MiMoV2"
_FALCON = r"FalconH1|JetNemotron|JetVLM"
_QWEN_HYBRID = r"Qwen3Next|Qwen3_5|InternS2"
_LONGEST_CHAINS = (UNWRITTEN, CHAIN, PAGED)

DEFAULTS: tuple[Default, ...] = (
    Default("dsa", caches=("dsa",), page_size=64, forced=True),
    Default("dsv4", architectures="DeepseekV4", page_size=256, forced=True),
    Default("trtllm_mla", B200, architectures=_DEEPSEEK, caches=("mla",)),
    Default("trtllm_mha", B200, architectures=r"GptOss|Llama4"),
    Default("fa3", HOPPER, architectures=r"GptOss|Llama4"),
    Default("triton", architectures=r"GptOss|Llama4"),
    Default("trtllm_mha", B200, architectures=r"Exaone|Olmo2"),
    Default("fa3", architectures=r"Exaone|Olmo2"),
    Default("trtllm_mha", B200, architectures="Gemma4"),
    Default("triton", architectures="Gemma4"),
    Default("fa4", B200, architectures="MiMoV2"),
    Default("fa4", BLACKWELL, architectures="Step3p"),
    Default("fa3", HOPPER, architectures="Step3p"),
    Default("fa3", architectures="IQuestQ1"),
    Default("trtllm_mha", B200, architectures="Qwen4Exp", drafts=(CHAIN, PAGED), page_size=64, forced=True),
    Default("triton", B200, architectures="Qwen4Exp", page_size=64, forced=True),
    Default("fa3", HOPPER, architectures="Qwen4Exp", drafts=(UNWRITTEN,), page_size=64, forced=True),
    Default("flashinfer", architectures="Qwen4Exp", page_size=64, forced=True),
    Default("fa3", HOPPER, architectures="MiniMaxM3Sparse", drafts=(UNWRITTEN, CHAIN), page_size=128, forced=True),
    Default("trtllm_mha", B200, architectures=_QWEN_HYBRID, drafts=(CHAIN,), page_size=64, forced=True),
    Default("triton", B200, architectures=_QWEN_HYBRID, page_size=1, forced=True),
    Default("trtllm_mha", B200, architectures="NemotronH", drafts=_LONGEST_CHAINS, page_size=64, draft="trtllm_mha"),
    Default("triton", BLACKWELL, architectures="NemotronH", draft="flashinfer"),
    Default("triton", B200, architectures=_FALCON),
    Default("flashinfer", B200, architectures=r"Lfm2|GraniteMoeHybrid"),
    Default("fa3", HOPPER, architectures="Qwen3VL", drafts=(UNWRITTEN, CHAIN), decode="flashinfer"),
    Default("triton", BLACKWELL, caches=("mla",), deterministic=True),
    Default("flashinfer", BLACKWELL, deterministic=True),
    Default("fa3", deterministic=True),
    Default("fa3", HOPPER, caches=("mla",)),
    Default("flashinfer", B200, caches=("mla",)),
    Default("triton", caches=("mla",)),
    Default("fa3", HOPPER, drafts=(UNWRITTEN, CHAIN)),
    Default("trtllm_mha", B200, drafts=(CHAIN,)),
    Default("triton", architectures=_SINKS),
    Default("flashinfer"),
)
"""The attention backends that SGLang takes by itself, those of architectures before those of all others."""


def default(arch: str, cache: str, architecture: str, known: str, *, deterministic: bool) -> Default:
    """Return what SGLang takes where no attention backend is written; ``known`` is what `drafts` says."""
    return next(
        row
        for row in DEFAULTS
        if (not row.archs or arch in row.archs)
        and (not row.caches or cache in row.caches)
        and re.match(row.architectures, architecture)
        and (not row.drafts or known in row.drafts)
        and (not row.deterministic or deterministic)
    )


def page_of(backend: str, written: int | None) -> int | None:
    """Return the tokens per page of an attention backend; None where it takes what is written."""
    pages = backend_of(backend).pages
    return None if not pages or written in pages else pages[0]


class DraftShape(NamedTuple):
    """What is drafted: steps, drafts kept in each, nodes."""

    num_steps: int
    topk: int
    num_draft_tokens: int


_SHAPES: Mapping[str, DraftShape] = dict.fromkeys(
    ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"), DraftShape(5, 4, 8)
)


def shape(algorithm: str, architecture: str) -> DraftShape:
    """Return what SGLang drafts where nothing of it is written, by the target's class."""
    usual = DraftShape(3, 1, 4)
    return usual if algorithm == "STANDALONE" else _SHAPES.get(architecture, usual)


_MAX_REQUESTS: Mapping[str, int] = {"DeepseekV4": 256}
"""What the name of a class begins with -> requests at once, where ``--max-running-requests`` is not given."""
_USUAL_REQUESTS = 48


def max_requests(architecture: str) -> int:
    """Return how many requests a server with speculation has at once, where nothing of it is written."""
    return next((count for begin, count in _MAX_REQUESTS.items() if architecture.startswith(begin)), _USUAL_REQUESTS)


FEW_REQUESTS = 32
"""As many as this or fewer: a server that decodes has rows for twice as many that another one prefills."""


def on_their_way(requests: int | None) -> int:
    """Return how many requests have rows beside those that run, by ``--max-running-requests`` where that is written."""
    return 2 * requests if requests is not None and requests <= FEW_REQUESTS else 0


_GRAPHS = ((20, 8, 8), (35, 48, 160), (60, 32, 160), (160, 256, 512))
"""Below so many GiB, the most requests of a captured step: of fewer than four ranks, and of four and more."""


def most_captured(gpu: Gpu, ranks: int) -> int:
    """Return of how many requests SGLang's largest graph is, where nothing of it is written."""
    few, many = next(((few, many) for below, few, many in _GRAPHS if gpu.memory < below), (512, 512))
    return few if ranks < 4 else many


_STEPS = ((1, 9, 1), (10, 33, 2), (40, 65, 4), (72, 257, 8), (272, 1 << 16, 16))


def captured(most: int) -> list[int]:
    """Return the sizes of batches of which SGLang captures a speculative step, up to the largest."""
    sizes = [size for begin, end, step in _STEPS for size in range(begin, min(end, most + 1), step)]
    return sorted({*sizes, most})
