"""The story of a configuration as people are told it, and a page of it with pictures."""
