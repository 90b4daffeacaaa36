"""The project's own modules and what they import, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.paths import ROOT


def package_folders() -> dict[str, Path]:
    """The import packages by name."""
    found = [path for pattern in ("fsd_*", "*/fsd_*") for path in ROOT.glob(pattern)]
    return {path.name: path for path in found if path.is_dir() and path.name.isidentifier()}


@cache
def modules() -> dict[str, Path]:
    """Every module and package by its dotted name."""
    found = {}
    for package in package_folders().values():
        for path in package.rglob("*.py"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def import_graph() -> dict[str, set[str]]:
    """What each module imports anywhere in it, inside functions too, and the parent packages that run first."""
    known = modules()
    return {
        name: {parent for other in _imported(path, known) for parent in _with_parents(other)} - set(_with_parents(name))
        for name, path in known.items()
    }


def _imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in _executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("fsd_"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno} imports relatively"
            origin = node.module or ""
            names = (f"{origin}.{alias.name}" for alias in node.names)
            yield from (name if name in known else origin for name in names if name.startswith("fsd_"))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All of a tree but what stands under `if TYPE_CHECKING`, which no program imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)


def _with_parents(module: str) -> Iterator[str]:
    """a.b.c: a.b.c, a.b, a."""
    while module:
        yield module
        module = module.rpartition(".")[0]
