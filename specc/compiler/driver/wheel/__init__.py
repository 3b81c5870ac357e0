"""The wheel: the program, its runtime and its machine code as a Python distribution."""

ENTRY_POINTS = "specc.programs"
"""The group in which the wheel of a program names its package."""
