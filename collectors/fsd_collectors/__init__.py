"""Traces of decoding: recording, storing, loading and replaying them. Nothing yet."""
