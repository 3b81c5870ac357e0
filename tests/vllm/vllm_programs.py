"""Programs for vLLM, as a user would make them: a configuration that says so, built."""

from __future__ import annotations

from pathlib import Path

from engine_job import specc
from vllm_models import AUX_LAYERS
from vllm_server import BLOCK, NUM_STEPS, ROWS, Variant

ALGORITHMS = {"draft_model": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3"}
"""vLLM's methods and what specc calls them."""
CONFIG = """
name: served
engine: vllm
algorithm: {algorithm}
page_size: {block}
topk: 1
num_steps: {num_steps}
buckets: {buckets}
verify: greedy
archs: [sm_90]
target: {{model: {models}/target{more}}}
draft: {{model: {models}/{draft}}}
"""


def build_program(variant: Variant, models: Path, folder: Path) -> Path:
    """The wheel for a variant's engine, built in a new folder. RuntimeError with what specc said."""
    folder.mkdir(parents=True)
    config = folder / "program.yaml"
    algorithm = ALGORITHMS[variant.method or ""]
    more = f", aux_layers: {AUX_LAYERS}" if variant.method == "eagle3" else ""
    sizes = {"more": more, "block": BLOCK, "num_steps": NUM_STEPS, "buckets": list(range(1, ROWS + 1))}
    config.write_text(CONFIG.format(algorithm=algorithm, models=models, draft=variant.draft, **sizes))
    specc("build", str(config), "-o", str(folder), "--quiet")
    return next(folder.glob("*.whl"))
