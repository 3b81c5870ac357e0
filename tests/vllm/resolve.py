"""What vLLM makes of command lines: `.vllm/bin/python tests/vllm/resolve.py JOB.json OUT.json`.

Job and answers are those of `specc vllm check --exact`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoConfig, Qwen2Config

SCRIPT = Path(__file__).parents[2] / "specc/engines/vllm/check/answer.py"
spec: Any = importlib.util.spec_from_file_location("answer", SCRIPT)
asked: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(asked)
for kind in ("mimo", "mimo_v2"):
    AutoConfig.register(kind, type(kind, (Qwen2Config,), {"model_type": kind}))
"""In the place of the code that comes with a model, which is not run."""


def main() -> None:
    """Read a job, answer it, write what came out."""
    job, out = (Path(name) for name in sys.argv[1:])
    answers = asked.answers(json.loads(job.read_text()))
    out.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
