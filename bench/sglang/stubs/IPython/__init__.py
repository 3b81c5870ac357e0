"""Stands in for IPython, which SGLang imports for notebooks."""
