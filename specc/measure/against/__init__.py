"""A step beside the same work of an engine's own kernels, on the same tensors; only greedy steps have that."""
