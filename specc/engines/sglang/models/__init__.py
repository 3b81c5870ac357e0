"""SGLang's models in a program's forwards, which may be a graph each."""
