"""Helpers of several benchmarks: timing, results, claims, programs in processes of their own, and the command."""
