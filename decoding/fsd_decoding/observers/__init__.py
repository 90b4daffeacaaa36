"""Observers of decoding rounds, for recording divergences, telemetry and traces."""
