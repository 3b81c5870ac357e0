"""What an engine has done, for whoever watches it."""
