"""SGLang 0.5.23: what its workers, scheduler and attention do, as far as a program depends on it."""

from __future__ import annotations

from functools import partial

from specc.compiler.config.presets.contract import Preset
from specc.engines.adapter_files import adapter_files
from specc.engines.sglang.check.models import unserved
from specc.engines.sglang.served import BACKENDS, KINDS, TESTED

SGLANG = Preset(
    name="SGLang",
    tested=TESTED,
    plugins="sglang.srt.plugins",
    adapter=partial(adapter_files, "sglang"),
    algorithms=tuple(name for kind in KINDS for name in kind.algorithms),
    options={name: kind.options for kind in KINDS for name in kind.algorithms if kind.options},
    demands={
        ("draft_positions",): "shifted",  # its drafts see token p + 1 at position p, language models too
        ("draft_sampling",): "greedy",  # coupled drafts were not tried in it
        ("overlap",): True,  # its workers keep state and lengths on the device, whether they are run ahead or not
        ("disaggregation",): False,
        ("logprobs",): "raw",  # SGLang's own are those before filters, a program's processed ones those behind them
        ("target", "logits_dtype"): "float32",  # its logits processor hands over nothing else
        ("draft", "logits_dtype"): "float32",
    },
    heads_of_target=tuple(name for kind in KINDS for name, counts in kind.token_maps.items() if counts),
    # Of a greedy program SGLang itself serves requests that sample.
    verifies=("greedy", "target_only", "rejection", "block"),
    tree_masks=tuple(sorted({backend.mask for backend in BACKENDS.values() if backend.mask})),
    padding=64,  # of its heads, which it shares out from two ranks on
    max_requests=256,
    missing_outputs=("indexer_topk",),
    gpus="sm_",
    unserved=unserved,
    budgets=True,
)
