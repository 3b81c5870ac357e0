"""specc: one YAML configuration of speculative decoding in, specialised kernels and a plan out.

Importing this package imports nothing heavy; every subsystem is imported where it is used.
"""

from __future__ import annotations

from specc.version import __version__

__all__ = ["__version__"]
