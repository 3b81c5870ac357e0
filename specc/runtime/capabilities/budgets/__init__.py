"""What programs of several shapes have beside, some of which have a budget of rows."""
