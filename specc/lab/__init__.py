"""Where programs are run and measured: the reference engine, benchmarks, and their commands."""
