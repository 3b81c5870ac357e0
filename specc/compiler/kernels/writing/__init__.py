"""What kernel families share: how ops become text, and how many bytes a launch moves."""
