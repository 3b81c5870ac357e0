"""The memory of a bound program: its own arena, and the engine's tables and pools."""
