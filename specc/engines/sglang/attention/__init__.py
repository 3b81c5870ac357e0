"""Attention of SGLang's: a record of each backend (`kinds`), and how the forwards of a step are prepared on it.

`step` is what the worker calls. docs/sglang-servers.md says which were tried on what.
"""
