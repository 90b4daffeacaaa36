"""Public names of a package that are imported when they are first used (PEP 562).

Models, search and tables take seconds to import, and `--help` should not wait for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in other modules.

    Args:
        package: its `__name__`.
        homes: the module that each public name is imported from; a name that is its module's own stands for that
            module itself.
    """

    def getattr_(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        found: object = home if homes[name].endswith(f".{name}") and not hasattr(home, name) else getattr(home, name)
        setattr(sys.modules[package], name, found)
        return found

    def dir_() -> list[str]:
        own = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted(own | set(homes))

    return getattr_, dir_
