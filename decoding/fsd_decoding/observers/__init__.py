"""Observers: what a round looked like, for recording, telemetry and traces."""
