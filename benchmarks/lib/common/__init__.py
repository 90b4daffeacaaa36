"""Helpers of several benchmarks: timing, facts of the machine, results and claims."""
