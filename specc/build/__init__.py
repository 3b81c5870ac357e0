"""A configuration through the whole compiler: passes at every depth, linking, the plan, and what is written of it."""
