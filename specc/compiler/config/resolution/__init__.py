"""A file completed: its models, its engine, what ranks share out, and its tuning file. `resolve` lists the stages."""
