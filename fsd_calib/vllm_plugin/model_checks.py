"""Whether an engine serves the models of a profile."""

from typing import Any


def check_models(config: Any, profile: Any) -> list[str]:
    return []
