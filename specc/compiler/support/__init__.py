"""Helpers that every other package may use and that import nothing of specc themselves."""

from __future__ import annotations
