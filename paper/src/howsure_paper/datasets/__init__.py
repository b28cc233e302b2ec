"""Data sets of the paper and of the benchmarks, and where their files lie."""
