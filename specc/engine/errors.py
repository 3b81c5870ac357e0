"""Errors of the engine itself. What is wrong with a user's input is a `DiagnosticError` instead."""

from __future__ import annotations


class EngineError(Exception):
    """The base of all errors that the engine raises."""


class OutOfPagesError(EngineError):
    """The KV pool has fewer free pages than were asked for; nothing was allocated."""

    def __init__(self, needed: int, free: int) -> None:
        """Record how many pages were needed and how many were free."""
        super().__init__(f"the KV pool has {free} free pages, {needed} are needed")
        self.needed = needed
        self.free = free


class OutOfRowsError(EngineError):
    """Every row of the request table is taken."""


class RequestTooLongError(EngineError):
    """A request could never finish: its context is longer than the engine can hold."""


class UnsupportedModelError(EngineError):
    """The model's attention asks for something that the paged attention does not do."""


class ContractError(EngineError):
    """The compiled program and the engine disagree about the state of a request."""
