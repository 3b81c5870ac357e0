"""The reference engine: Hugging Face models, paged KV memory and continuous batching over compiled programs.

It uses a compiled program only through what docs/runtime.md promises, and of the compiler nothing but
`specc.compiler.support`. docs/engine.md shows how to use it; `specc run` is its command line.
"""

from __future__ import annotations
