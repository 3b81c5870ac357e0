"""What requests take from step to step, in pool rows and between machines."""
