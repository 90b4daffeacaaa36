"""Trees of drafted tokens, of which one forward pass of the target judges all paths."""
