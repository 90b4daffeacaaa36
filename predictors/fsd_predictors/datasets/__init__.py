"""Data sets of drafted tokens, built from traces."""
