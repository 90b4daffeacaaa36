"""All rules on the same rounds: what any of them writes at any T, what that keeps, and how fast it is."""
