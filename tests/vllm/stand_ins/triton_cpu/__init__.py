"""A backend `cpu` of Triton, of which no index has one: vLLM asks for it where there is no GPU.

It compiles nothing. With TRITON_INTERPRET=1 Triton runs kernels in Python and asks no backend.
"""
