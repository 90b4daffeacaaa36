"""Traces for tests: collected from tiny models, written down, or held in memory."""
