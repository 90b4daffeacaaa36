"""Observers of decoding rounds, for recording scores, telemetry and traces."""
