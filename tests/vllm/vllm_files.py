"""Where vLLM's environment is. Imports the standard library only."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from engine_environment import Environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENT = Environment(ROOT / ".vllm", "vLLM", {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"})
PYTHON, READY = ENVIRONMENT.python, ENVIRONMENT.ready
