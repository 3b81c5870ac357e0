"""The attack as code: generators of every input, and a judge of every outcome.

The outcome of any input is right, a coded diagnostic, or a typed error. Whatever else happens is a failure, and is
printed with the command that makes it happen again: ``python -m tests.fuzz GENERATOR --seed SEED --case NUMBER``.
"""
