"""What algorithms are built of: the scope they write in, and the parts that several share."""
