"""Commands that run and measure programs, found by entry points of the group ``specc.commands``."""
