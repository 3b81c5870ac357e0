"""One run of an entry: its inputs, its memory, calls into the engine, and its results."""
