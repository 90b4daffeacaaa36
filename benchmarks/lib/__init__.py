"""Helpers of the benchmarks, by what they measure. The scripts to run are in the folder above."""
