"""CUDA graphs: of whole steps, and of what lies between forwards that are not captured."""
