"""The charts of a run, each with the data that it shows."""
