"""A learned score: how likely it is that a mismatch changes the outcome."""
