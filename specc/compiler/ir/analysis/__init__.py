"""Questions about a module that several passes ask."""
