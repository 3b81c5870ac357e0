"""vLLM's requests in a program's terms: how they are sampled, their penalties and their log-probabilities."""
