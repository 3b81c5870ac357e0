"""Both sides of `specc bench --against`, on tiny programs: the comparison that comes before the times.

    TRITON_INTERPRET=1 PYTHONPATH=. .sglang/bin/python tests/conformance/benched.py LIBRARIES

Runs in SGLang's environment; what specc needs besides comes from LIBRARIES, the site-packages of specc's own, last.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

sys.path.append(sys.argv[1])
warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)  # exp(-inf) is meant to be 0

import torch

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.lab.measure.against.beside import agreeing, missing
from specc.lab.measure.against.counterpart import obstacle
from specc.lab.measure.against.parts import parts
from specc.lab.measure.interpreted import InterpretedBackend
from specc.lab.measure.timing import Effort

CHAIN = """\
name: benched{name}
algorithm: {algorithm}
num_steps: {steps}
page_size: {page}
buckets: [1, 3]
archs: [sm_90]
target: {{hidden_size: 40, num_layers: 8, num_kv_heads: 1, head_dim: 8, vocab_size: 301, dtype: {dtype}}}
draft: {{hidden_size: 40, num_layers: 1, num_kv_heads: 1, head_dim: 8, vocab_size: 301, dtype: {dtype}}}
"""
TREE = CHAIN + "topk: 2\nnum_draft_tokens: 5\nmask: qlen\n"
PROGRAMS = (
    (CHAIN, "EAGLE", 3, 1, "bfloat16"),
    (CHAIN, "EAGLE3", 2, 16, "float32"),
    (TREE, "EAGLE", 3, 1, "bfloat16"),
    (TREE, "EAGLE", 2, 4, "float32"),
)


def main() -> None:
    """Compare every program in every bucket, and run its parts once."""
    assert missing() is None, missing()
    for number, (text, algorithm, steps, page, dtype) in enumerate(PROGRAMS):
        written = text.format(name=number, algorithm=algorithm, steps=steps, page=page, dtype=dtype)
        build = build_program(load_text(written, Path("benched.yaml"), names(), needs))
        assert obstacle(build.plan) is None, obstacle(build.plan)
        with tempfile.TemporaryDirectory() as folder:
            backend = InterpretedBackend(build, Path(folder))
            for bucket in build.plan.buckets:
                program, counterpart = agreeing(build.plan, backend, torch.device("cpu"), bucket, Effort(1, 2))
                counterpart.step()
                for part in parts(program, counterpart):
                    program.queueing(part.launches)()
                    part.sglang()
                print(f"{build.plan.name} at {bucket}: same results as {counterpart.name}")


if __name__ == "__main__":
    main()
