"""A checked file completed: its models, its engine, what ranks share out, and its tuning file."""
