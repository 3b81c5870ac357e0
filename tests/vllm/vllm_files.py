"""Where vLLM's environment is, and what it runs on. Imports the standard library only."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from engine_environment import Environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENT = Environment(ROOT / ".vllm", "vLLM", {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"})
PYTHON, READY = ENVIRONMENT.python, ENVIRONMENT.ready
DEVICE = json.loads(READY.read_text()).get("device", "cpu") if READY.exists() else "cpu"
"""`cpu`, or `cuda` in an environment of `on_gpu.sh`."""
ON_GPU = DEVICE == "cuda"
