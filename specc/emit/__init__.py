"""What `specc build --emit` can write, one module per format."""
