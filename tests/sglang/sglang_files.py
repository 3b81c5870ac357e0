"""Where SGLang's environment is. Imports the standard library only."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent))

from engine_environment import Environment

ENVIRONMENT = Environment(ROOT / ".sglang", "SGLang", {"SGLANG_USE_CPU_ENGINE": "1"})
PYTHON, READY = ENVIRONMENT.python, ENVIRONMENT.ready
