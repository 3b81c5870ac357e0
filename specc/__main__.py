"""`python -m specc`: the command `specc`."""

from __future__ import annotations

from specc.cli.main import main

if __name__ == "__main__":
    main()
