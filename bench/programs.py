"""Programs that are compiled for a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import Build, build_program
from specc.lab.measure.against.work import WorkSizes

CONFIG = """\
name: bench_{kind}
algorithm: EAGLE
topk: {topk}
num_steps: {steps}
num_draft_tokens: {nodes}
page_size: {page}
buckets: {buckets}
max_requests: {requests}
overlap: true
archs: [{archs}]
target: {{{sizes}, num_layers: {layers}}}
draft: {{{sizes}, num_layers: 1}}
"""
SIZES = "hidden_size: {width}, num_kv_heads: {heads}, head_dim: {head_dim}, vocab_size: {vocab}, dtype: bfloat16"


def compile_shape(shape: WorkSizes, buckets: Sequence[int], archs: Sequence[str] = ("sm_90",), keys: str = "") -> Build:
    """Passes, kernels and plan of an EAGLE chain or tree that holds the shape; no machine code. `keys`: more YAML."""
    kind, sizes = "tree" if shape.topk > 1 else "chain", asdict(shape)
    sizes |= {"buckets": list(buckets), "requests": shape.pool - 1, "archs": ", ".join(archs)}
    text = CONFIG.format(kind=kind, sizes=SIZES.format(**sizes), **sizes) + keys
    return build_program(load_text(text, Path(f"bench_{kind}.yaml"), names(), needs))
