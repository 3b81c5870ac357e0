"""What people are told: the story of a configuration, and the summary a build ends with."""
