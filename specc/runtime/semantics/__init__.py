"""What every op computes, in plain torch."""
