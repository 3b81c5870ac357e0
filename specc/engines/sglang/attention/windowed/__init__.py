"""What layers with a window read and write in a step: slots of a second KV pool, and lists of the last tokens."""
