"""What people are told of a program: the story of its configuration, and a page with pictures."""
