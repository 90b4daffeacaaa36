"""What all packages stand on: errors, files, the user's folders, strict JSON and YAML, terminal, progress, pages.

Importing it before torch lets PyTorch's waiting threads sleep, see `docs/machines.md`.
"""

from __future__ import annotations

import os
import sys

if "torch" not in sys.modules:  # its OpenMP reads this once, while it is loaded
    # Threads that spin while they wait take the cores from those they wait for, where other processes run beside.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
