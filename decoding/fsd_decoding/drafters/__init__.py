"""Drafters: where the draft distribution q comes from."""
