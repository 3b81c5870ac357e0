"""Print the functions of a vLLM that are not known, with their digests, as the table of `digests.py` has them.

    python tests/vllm/print_digests.py [FOLDER]

FOLDER is the package of a vLLM, installed or unpacked from its wheel; that of the environment if it is left out. A
digest belongs into the table when `make vllm` has run programs in that version.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vllm_files import ENVIRONMENT

from specc.engines.vllm.server.digests import digests, unknown


def main() -> None:
    """Print them."""
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else ENVIRONMENT.site / "vllm"
    found = digests(package)
    for place in unknown(found):
        print(f"{place}: {found[place] or 'is not there'}")


if __name__ == "__main__":
    main()
