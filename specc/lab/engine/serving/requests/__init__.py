"""A request: what becomes one, its grammar, its tokens and its text."""
