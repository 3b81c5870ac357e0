"""What serves requests: their queue and schedule, the callbacks of a program, and what fits."""
