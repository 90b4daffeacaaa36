"""Trees against chains."""
