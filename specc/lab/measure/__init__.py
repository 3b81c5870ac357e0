"""Programs on a GPU, measured: every launch beside its floor, and which choices make it faster.

Nothing here is needed to compile or to run a program. Times are only ever taken of two things in turn, in one process.
"""
