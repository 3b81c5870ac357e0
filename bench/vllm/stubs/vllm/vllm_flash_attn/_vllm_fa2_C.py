"""Stands in for FlashAttention 2, of which nothing is called: vLLM does not start without any version."""
