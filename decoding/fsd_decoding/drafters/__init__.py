"""Drafters: sources of the draft distribution q."""
