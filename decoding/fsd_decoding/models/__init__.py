"""Hugging Face causal language models: running, caching, compatibility checks and fingerprints."""
