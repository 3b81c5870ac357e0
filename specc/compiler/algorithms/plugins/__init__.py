"""Algorithms that come from outside, with the device code and the references that they bring."""
