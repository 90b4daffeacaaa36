"""A folder of traces: written by one collector, whole or not at all; read lazily; verified."""
