"""What stands around SGLang's models in a program's forwards, a file for each of its features."""
