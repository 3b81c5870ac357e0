"""Classes that prepare the forwards of a step, by kinds of attention; records of `kinds` name them."""
