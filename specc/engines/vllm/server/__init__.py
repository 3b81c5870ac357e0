"""vLLM's server: whether a program fits it, which functions of it are known, and how long its steps take."""
