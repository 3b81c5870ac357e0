"""What a program is, read from its files: the manifest and the plan."""
