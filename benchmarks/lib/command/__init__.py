"""Measurements of a whole command."""
