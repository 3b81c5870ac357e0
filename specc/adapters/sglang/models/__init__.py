"""SGLang's models in a program's forwards: what a step hands to them, and what stands around them."""
