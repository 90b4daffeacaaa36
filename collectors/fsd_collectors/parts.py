"""The two parts that problems are divided into. Knows their names only."""

from __future__ import annotations

from typing import Literal

Part = Literal["tuning", "certification"]
