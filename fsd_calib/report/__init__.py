"""Tables and sentences of a profile or a plan. Every number shown is one that it holds."""
