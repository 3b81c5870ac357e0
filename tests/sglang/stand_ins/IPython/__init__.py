"""Imported by SGLang, which needs it in notebooks alone."""
