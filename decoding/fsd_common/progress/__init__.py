"""Displays of progress: bars on a terminal, plain lines in a log, a bar in a notebook."""
