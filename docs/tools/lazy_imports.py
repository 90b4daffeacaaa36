"""For the pages on the public API: names that a package imports for type checkers alone are there at run time, too.

Our packages export them lazily (`fsd_common.lazy_exports`), so that `from package import *` brings them.
"""

from __future__ import annotations

from typing import Any

import griffe


class LazyImports(griffe.Extension):
    """Marks imported names as present at run time."""

    def on_alias_instance(self, *, alias: griffe.Alias, **kwargs: Any) -> None:
        alias.runtime = True
