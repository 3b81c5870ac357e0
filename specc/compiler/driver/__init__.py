"""A configuration through the whole compiler: passes at every shape, linking, the plan, and what is written of it."""
