"""The wheel: the program, its runtime and its machine code as a Python distribution."""
