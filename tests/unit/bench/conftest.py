"""The scripts of bench/sglang can be imported: on a GPU machine they lie in one folder, and find each other there."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "bench" / "sglang"))
