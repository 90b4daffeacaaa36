"""What outlasts a run: SQLite databases, the folders they lie in, and the identities of processes recorded in them."""
