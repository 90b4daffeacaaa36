"""How busy the machine is, as far as it says."""

from __future__ import annotations

import os
from typing import NamedTuple


class MachineLoad(NamedTuple):
    """`average`: processes that ran or waited to, over the last minute. `cores`: that this process may use."""

    average: float
    cores: int

    @property
    def busy(self) -> bool:
        """Whether some had to wait."""
        return self.average > self.cores


def machine_load() -> MachineLoad | None:
    """None: this system does not say."""
    try:
        return MachineLoad(os.getloadavg()[0], len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return None
