"""SGLang's requests in a program's terms: which are served, what is asked of them, and their state between steps."""
