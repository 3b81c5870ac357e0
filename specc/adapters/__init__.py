"""Adapters: one folder per serving engine, copied as it is into the wheels of programs that are built for it."""
