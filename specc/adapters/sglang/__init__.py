"""The program of the package above as SGLang's decode step; SGLang finds `register` as a plugin's entry point."""

from __future__ import annotations


def register() -> None:
    """Let SGLang use the program.

    Raises NotImplementedError: not yet.
    """
    raise NotImplementedError("programs do not run in SGLang yet")
