"""Acceptance rules: which drafted tokens stay."""
