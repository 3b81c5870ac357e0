"""The scripts of bench/sglang can be imported, and what they share: on a GPU machine all lie in one folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4] / "bench" / "sglang"))
sys.path.append(str(Path(__file__).parents[4] / "bench"))
