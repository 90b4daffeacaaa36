"""Console commands, one file each."""
