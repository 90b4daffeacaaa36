"""Helpers of the benchmarks, by what they measure; the scripts to run are in the folder above."""
