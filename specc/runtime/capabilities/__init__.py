"""What only some programs need, a file each (see `plan/capabilities.py`)."""
