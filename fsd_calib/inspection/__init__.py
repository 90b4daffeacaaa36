"""Texts with the source of every token: decoded, described in words, on a terminal and as a page."""
