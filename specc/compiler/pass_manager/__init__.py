"""What a pass is, what runs passes, and the instruments that watch them."""
