"""Paged memory of keys and values, and attention over it."""
