"""SGLang's server: whether a program fits it, what its ranks have alike, and a dry step before the first request."""
