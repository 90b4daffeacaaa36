"""The console commands, one file each."""
