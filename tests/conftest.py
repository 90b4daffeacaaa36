"""What every test gets. Knows Hypothesis's settings and nothing of the project."""

from __future__ import annotations

from hypothesis import settings

# The first call into torch takes longer than Hypothesis's 200 ms, and so does any call on a busy machine.
settings.register_profile("fsd", deadline=None)
settings.load_profile("fsd")
