"""Storage of traces in a folder: crash-safe writing by one collector, lazy reading, and verification."""
