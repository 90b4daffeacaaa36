"""Runs Python programs that a model wrote, in a sandbox, and says whether they ran to their end."""
