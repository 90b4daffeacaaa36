"""Traces in words, tables and pictures, from one pass in bounded memory."""
