"""Telemetry of a decoding run: its rounds as a table, and as a page of figures."""
