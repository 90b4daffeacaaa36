"""Features of drafted tokens: one definition for training, replay and decoding."""
