"""Tiny models, and decoders of them in every state that tests ask for."""
