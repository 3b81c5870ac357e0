"""The text form of a module: printer and parser."""
