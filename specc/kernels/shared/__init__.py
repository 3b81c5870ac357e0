"""What kernel families share."""
