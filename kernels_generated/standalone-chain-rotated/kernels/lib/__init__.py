"""Device code shared by the rendered kernels. Copied as it is next to them."""
