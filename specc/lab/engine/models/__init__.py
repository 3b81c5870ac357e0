"""Targets and drafts: transformers' models and draft heads over paged memory, and how they are loaded."""
