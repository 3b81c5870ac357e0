"""Serving engines: a folder each, with its adapter and, in ``check/``, what the compiler asks of it.

Files with an underscore in front are what adapters share. They and adapters are copied into wheels; ``check`` stays.
"""
