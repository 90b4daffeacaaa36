"""What can be wrong with what a user gave. Knows no other module."""


class UsageError(ValueError):
    """An input breaks a rule. The message is one line: the thing, its value, the rule, the way out."""
