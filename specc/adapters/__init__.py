"""Adapters of serving engines, a folder each: copied into wheels of that engine, where the parent is the program."""
