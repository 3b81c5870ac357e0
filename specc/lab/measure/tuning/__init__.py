"""The search of `specc tune`, and the file in which its choices are kept."""
