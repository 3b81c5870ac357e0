"""Generated programs on a CUDA device."""
