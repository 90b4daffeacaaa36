"""Hugging Face causal language models, run with a key-value cache of slots."""
