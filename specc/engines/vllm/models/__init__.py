"""vLLM's models in a program's forwards: the draft, the target's head, and the head of a draft."""
