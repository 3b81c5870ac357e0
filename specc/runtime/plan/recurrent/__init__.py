"""What programs know of the recurrent state of their target."""
