"""The fakes of all tests: an engine whose models are arithmetic, its memory, and plans that are written by hand."""
