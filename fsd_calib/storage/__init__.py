"""Files that outlast a run: SQLite databases and the folders they lie in."""
