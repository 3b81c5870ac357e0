"""Where vLLM's environment is. Imports the standard library only."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent))

from engine_environment import Environment

ENVIRONMENT = Environment(ROOT / ".vllm", "vLLM", {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"})
PYTHON, READY = ENVIRONMENT.python, ENVIRONMENT.ready
