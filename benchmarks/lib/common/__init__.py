"""Shared by all benchmarks: timing, the machine, results and claims."""
