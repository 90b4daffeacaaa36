"""Acceptance rules: which drafted tokens a round accepts."""
