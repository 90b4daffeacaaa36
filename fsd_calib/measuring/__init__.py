"""What decoding a task under a configuration came to: outcomes, tokens, seconds, kept for later runs."""
