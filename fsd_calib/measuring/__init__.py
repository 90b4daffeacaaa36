"""Measurement of settings on tasks: outcomes, tokens and seconds, with a cache of results."""
