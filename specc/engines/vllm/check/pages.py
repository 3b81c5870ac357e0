"""How many tokens a block has in vLLM 0.33.0 where a model keeps a recurrent state: as many as that state has room for.

All layers have blocks of the same bytes. So a block of keys and values has at least the bytes of a request's state in a
layer, in whole steps of what attention can read, and of what prefill keeps of the state.
"""

from __future__ import annotations

from math import lcm

from specc.compiler.config.archs import Gpu
from specc.compiler.config.models import Fact, ModelFacts
from specc.compiler.config.models.states import GDN, KDA, RecurrentState
from specc.engines.vllm.check.command_line import Arguments
from specc.engines.vllm.check.defaults import block_of

_HOPPER, _BLACKWELL = "sm_9", ("sm_10", "sm_12")
"""How the names of these GPUs begin."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
_LATENT_STEP = 128
"""Tokens of which a block of latent rows is a multiple beside a recurrent state."""
_KEPT_STEP = 64
"""Tokens after which FlashInfer's prefill of GDN hands out states, for prefix caching."""
_KEEPS_NONE = "OlmoHybrid"
"""What the names of the classes of GDN begin with whose prefill hands out no states."""
_KEPT_IN_FLOAT32 = "NemotronH"
"""What the names of the classes begin with whose matrices are float32 where nothing names their type."""


def hybrid_block(
    arguments: Arguments, gpu: Gpu, target: ModelFacts, dtype: str, backends: set[str], drafts: int
) -> Fact | None:
    """Return the tokens of a block with where they come from; None where the state's size is not known.

    ``dtype`` is the server's element type, ``backends`` are those of attention, ``drafts`` how many a step has at most.
    """
    state, row = RecurrentState.of(target.facts), _row_bytes(arguments, target, dtype)
    if state is None or row is None or dtype not in _BYTES or gpu.is_cpu:
        return None
    matrices = _BYTES.get(_matrices(arguments, state, target, dtype))
    if matrices is None:
        return None
    ranks = arguments.number("--tensor-parallel-size") or 1
    size = state.bytes(ranks=ranks, drafts=drafts, inputs=_inputs(arguments, dtype), matrices=matrices)
    step, kept = _step(arguments, gpu, target, state, backends)
    count = step * -(-size // (step * row))
    words = f"as many as have the bytes of the recurrent state ({state.kind}) of a layer, in steps of {step}{kept}"
    return Fact(count, words)


def caches_prefixes(arguments: Arguments) -> bool:
    """Return whether the server keeps prefixes of texts, and with them states: it does unless it is told not to."""
    return arguments.flag("--enable-prefix-caching") or "--enable-prefix-caching" not in arguments.values


def _step(
    arguments: Arguments, gpu: Gpu, target: ModelFacts, state: RecurrentState, backends: set[str]
) -> tuple[int, str]:
    """Return of what a block is a multiple, and why where that is more than attention's."""
    step = max(block_of(backends, gpu), arguments.number("--block-size") or 0)
    step = max(step, _LATENT_STEP) if target.values.get("kv_layout") == "mla" else step
    exports = state.kind == GDN and not str(target.values.get("architecture")).startswith(_KEEPS_NONE)
    if exports and caches_prefixes(arguments) and _exports_states(arguments, gpu, state):
        return lcm(step, _KEPT_STEP), ", as FlashInfer keeps states for prefix caching"
    return step, ""


def _exports_states(arguments: Arguments, gpu: Gpu, state: RecurrentState) -> bool:
    """Whether FlashInfer prefills, as it does by itself on Hopper, and on Blackwell for keys of 128."""
    asked = arguments.text("--gdn-prefill-backend", "auto")
    blackwell = gpu.arch.startswith(_BLACKWELL) and state.columns == 128
    return asked in ("auto", "flashinfer") and (gpu.arch.startswith(_HOPPER) or blackwell)


def _row_bytes(arguments: Arguments, target: ModelFacts, dtype: str) -> int | None:
    """Return the bytes of a token in a layer on a rank, None where the model does not say its sizes."""
    heads, length = (target.facts.get(key) for key in ("num_kv_heads", "head_dim"))
    written = arguments.text("--kv-cache-dtype", "auto")
    own = target.facts.get("kv_dtype")
    element = dtype if written == "auto" and own is None else str(own.value) if own and written == "auto" else written
    element = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}.get(element, element)
    if heads is None or length is None or element not in _BYTES:
        return None
    buffers = 1 if target.values.get("kv_layout") == "mla" else 2
    ranks = arguments.number("--tensor-parallel-size") or 1
    shared = 1 if buffers == 1 else max(1, int(heads.value) // ranks)
    return buffers * shared * int(length.value) * _BYTES[element]


def _inputs(arguments: Arguments, dtype: str) -> int:
    """Return the bytes of an element of what a convolution reads again."""
    written = arguments.text("--mamba-cache-dtype", "auto")
    return _BYTES.get(dtype if written == "auto" else written, 2)


def _matrices(arguments: Arguments, state: RecurrentState, target: ModelFacts, dtype: str) -> str:
    """Return the element type of the matrices: what is written, or what the class takes where nothing is."""
    written = arguments.text("--mamba-ssm-cache-dtype", "auto")
    if written != "auto":
        return written
    architecture = str(target.values.get("architecture", ""))
    if state.kind == KDA or (state.dtype is None and architecture.startswith(_KEPT_IN_FLOAT32)):
        return "float32"
    usual = arguments.text("--mamba-cache-dtype", "auto")
    return state.dtype or (dtype if usual == "auto" else usual)
