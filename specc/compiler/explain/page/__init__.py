"""A configuration on one page: what `specc report` writes."""
