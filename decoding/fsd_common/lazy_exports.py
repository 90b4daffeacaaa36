"""Lazy imports of a package's public names, on first use (PEP 562), so that `--help` does not wait for torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package whose public names are defined in other modules.

    Args:
        package: the package's `__name__`.
        homes: public name -> module that defines it. A name that is the last part of its module's own name, and not
            defined in it, stands for the module itself.
    """

    def getattr_(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(homes[name])
        is_module = homes[name].endswith(f".{name}") and not hasattr(home, name)
        value: object = home if is_module else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        own = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted(own | set(homes))

    return getattr_, dir_
