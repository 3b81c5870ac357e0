"""The attack as code: generators of every input, and a judge of every outcome.

The outcome of any input is right, a coded diagnostic, or a typed error. Whatever else happens is a failure, and is
printed with the command that makes it happen again: ``python -m tests.fuzz GENERATOR --seed SEED --case NUMBER``.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # fakes
