"""Measurements of worker processes."""
