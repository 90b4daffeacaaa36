"""A run as it was decoded, round by round: its numbers as a table, and drawn."""
