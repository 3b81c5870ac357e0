"""Draft heads, a file for each architecture, and the formats in which people publish them."""
