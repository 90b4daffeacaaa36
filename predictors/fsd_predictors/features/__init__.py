"""Features of drafted tokens, defined once for training, replay and the decoding loop."""
