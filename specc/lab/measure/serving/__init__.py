"""Servers on the OpenAI interface, with a program and without it: the same texts first, then both sides in turns."""
