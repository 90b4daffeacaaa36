"""Attacks on files and processes: kills, flipped bits, damaged files and full disks."""
