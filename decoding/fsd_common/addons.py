"""Code that is not this package's own, found by name: scores, rules, drafters and stop policies.

A name is `module:Name`, of a module on Python's path, or that of an entry point of an installed package. What it stands
for is known by the package's version and by a digest of its source, so that texts, traces and profiles that were made
with other code are told apart. Importing this imports nothing heavy.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from fsd_common.errors import UsageError, in_one_line

AddonKind = Literal["score", "rule", "drafter", "stop policy"]
GROUPS: Mapping[AddonKind, str] = {
    "score": "fsd_calib.scores",
    "rule": "fsd_calib.rules",
    "drafter": "fsd_calib.drafters",
    "stop policy": "fsd_calib.stop_policies",
}
"""The groups of entry points."""
OWN = "your own as module:Name"
"""How messages end that list names."""

_NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Addon:
    """What is known of code that is not of fsd-calib."""

    __pydantic_config__ = {  # noqa: RUF012  # of pydantic, which takes long to import
        "extra": "forbid", "use_attribute_docstrings": True,
        "json_schema_extra": {"description": "Code that is not of fsd-calib: a score, rule, drafter or stop policy."},
    }  # fmt: skip

    kind: AddonKind
    """What it is."""
    name: str
    """What it is called: module:Name, or the name of an entry point."""
    package: str | None
    """The package that has the entry point. null: it was named by its module."""
    version: str | None
    """The version of that package."""
    source: str
    """SHA-256 of its module's file, or where that is in a package of Python's, of all files in Python of the latter."""
    meaning: str = ""
    """What it says of itself: the first line of its docstring."""

    @property
    def facts(self) -> dict[str, Any]:
        """The fields for JSON."""
        return asdict(self)

    def require(self, whose: str) -> None:
        """Raises UsageError where it is missing here, or is another than then; nothing of it is imported.

        Args:
            whose: what was made with it, in words.
        """
        now = _known(self.kind, self.name)
        what = f"{self.kind} {self.name!r}"
        if now is None and self.package is not None:
            wanted = f"{self.package}=={self.version}"
            raise UsageError(f"{whose} needs {what}, which is not installed here; pip install {wanted}")
        if now is None:
            module = self.name.partition(":")[0]
            seen = next((folder for folder in _FOLDERS.get() if _holds(folder, module)), None)
            way = "put the folder that holds it in PYTHONPATH, or install its package"
            if seen is not None:  # a profile may come from elsewhere: only a user says that it is to run this code
                way = f"{seen} holds one; if you trust it, set PYTHONPATH={seen}"
            raise UsageError(f"{whose} needs {what}, and there is no module {module} on Python's path; {way}")
        then = (self.package, self.version)
        if (now.package, now.version) != then:
            raise UsageError(
                f"{whose} was made with {what} of {self.package} {self.version}, and here it is of {now.package} "
                f"{now.version}; install that version, or make it anew"
            )
        if now.source != self.source:
            raise UsageError(
                f"{whose} was made with another source of {what} (its digest was {self.source[:12]}, here it is "
                f"{now.source[:12]}); restore that one, or make it anew"
            )


class _Place(NamedTuple):
    """Where an add-on is."""

    module: str
    attribute: str
    package: str | None = None
    version: str | None = None


_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("where modules are looked for beside Python's path", default=())


@contextmanager
def looking_in(folder: Path) -> Iterator[None]:
    """Inside, a `module:Name` whose module is not on Python's path is looked for in a folder too, which is added to the
    path where it is there; processes that are started later have the same path."""
    before = _FOLDERS.set((folder, *_FOLDERS.get()))
    try:
        yield
    finally:
        _FOLDERS.reset(before)


_ADDED: list[str] = []


def added_to_path() -> Sequence[str]:
    """Returns the folders that were added to Python's path, see `looking_in`."""
    return [folder for folder in _ADDED if folder in sys.path]


def addon(kind: AddonKind, name: str) -> Addon | None:
    """Returns what is known of an add-on, without importing it; None: no add-on has that name.

    Raises:
        UsageError: there is no such module, or it is of Python itself; or several packages have the name.
    """
    found = _known(kind, name)
    if found is not None or ":" not in name:
        return found
    module = name.partition(":")[0]
    for folder in _FOLDERS.get():
        if _holds(folder, module):
            _ADDED.append(str(folder.resolve()))
            sys.path.append(_ADDED[-1])
            break
    importlib.invalidate_caches()  # the module may have been written just now
    found = _known(kind, name)
    if found is None:
        looked = "".join(f", nor in {folder}" for folder in _FOLDERS.get())
        raise UsageError(
            f"{kind} {name!r:.60}: there is no module {module} on Python's path{looked}; put the folder that holds it "
            "in PYTHONPATH, or install its package"
        )
    return found


def _holds(folder: Path, module: str) -> bool:
    root = folder / module.partition(".")[0]
    return root.is_dir() or root.with_name(f"{root.name}.py").is_file()


def unless_known(kind: AddonKind, name: str, own: Sequence[str]) -> str | None:
    """Returns what a name must be; None: it is that of an add-on, or one of this package's own."""
    if name in own or addon(kind, name) is not None:
        return None
    known = ", ".join([*own, *_points(kind)])
    return f"it must be {f'one of {known}, or ' if known else ''}{OWN}"


def is_standard(module: str) -> bool:
    """Whether a module is of Python itself, as that of `builtins.eval` is, which would run texts and data."""
    return module.partition(".")[0] in {*sys.stdlib_module_names, "builtins", "__main__"}


def imported(module: str, attribute: str) -> Any:
    """Imports a module, and returns something that it has. Exception: of any type, as that is users' code."""
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it would stand for a change of the same second
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    finally:
        sys.dont_write_bytecode = writes


class Registry(Generic[_Found]):
    """All that there is of one kind, by name: what this package has, and add-ons.

    Args:
        kind: what it is.
        own: what this package has.
        made: makes what an add-on is registered as, of the object that was imported and its name; None: the object
            is not of this kind.
        wanted: what that object must be, in words.
    """

    def __init__(
        self, kind: AddonKind, own: Mapping[str, _Found], made: Callable[[Any, str], _Found | None], wanted: str
    ) -> None:
        self.kind, self._own, self._made, self._wanted = kind, own, made, wanted
        self._loaded: dict[str, _Found] = {}

    @property
    def names(self) -> list[str]:
        """All names but those of modules."""
        return list(dict.fromkeys((*self._own, *_points(self.kind))))

    def addon(self, name: str) -> Addon | None:
        """Returns what is known of an add-on; None: this package has that name, or nothing has. UsageError: as
        `addon`."""
        return None if name in self._own else addon(self.kind, name)

    def find(self, name: str) -> _Found | None:
        """Returns what has a name, imported at the first call; None: nothing has.

        Raises:
            UsageError: an add-on is missing, cannot be imported, or is something else.
        """
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            if addon(self.kind, name) is None:
                return None
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> _Found:
        place = _place(self.kind, name)
        assert place is not None
        where = f"{self.kind} {name!r}" + ("" if ":" in name else f", {place.module}:{place.attribute}")
        try:
            found = imported(place.module, place.attribute)
            made = self._made(found, name)
        except (Exception, SystemExit) as error:  # it is another's code: whatever it raises
            raise UsageError(
                f"{where}: it cannot be used ({type(error).__name__}: {in_one_line(error)}); mend its module"
            ) from error
        if made is None:
            raise UsageError(f"{where}: it is {found!r:.60}; it must be {self._wanted}")
        return made


def _place(kind: AddonKind, name: str) -> _Place | None:
    """Where an add-on is; None: no entry point has that name. UsageError: several have it, or it is no name."""
    if ":" in name:
        written = _NAME.fullmatch(name)
        if written is None:
            raise UsageError(f"{kind} is {name!r:.60}; write {OWN}, such as mine:Name")
        return _Place(written[1], written[2])
    points = _points(kind).get(name, ())
    if len(points) > 1:
        packages = " and ".join(sorted(point.dist.name for point in points if point.dist))
        raise UsageError(f"{kind} {name!r} is there twice, of packages {packages}; remove one, or write module:Name")
    for point in points:
        assert point.dist is not None
        return _Place(point.module, point.attr, point.dist.name, point.dist.version)
    return None


def _points(kind: AddonKind) -> Mapping[str, Sequence[EntryPoint]]:
    return _points_on(GROUPS[kind], tuple(sys.path))


@cache
def _points_on(group: str, path: tuple[str, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    """Entry points by name. path: Python's, whose packages they are of."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, []).append(point)
    return found


_ADDONS: dict[tuple[AddonKind, str], Addon] = {}
"""As they were when they were first asked for: just before they are imported."""


def _known(kind: AddonKind, name: str) -> Addon | None:
    """What is known of an add-on on Python's path; None: it is not there. UsageError: it is of Python itself."""
    if (kind, name) not in _ADDONS:
        place = _place(kind, name)
        if place is None:
            return None
        if is_standard(place.module):
            raise UsageError(
                f"{kind} {name!r:.60} is of Python's own module {place.module}; put it in a file of its own, or in a "
                "package that you installed"
            )
        try:
            source, meaning = _source(place.module), _meaning(place)
        except OSError as error:
            raise UsageError(
                f"{kind} {name!r:.60}: its source cannot be read ({error.filename}: {error.strerror}); mend that file"
            ) from error
        if source is None:
            return None
        _ADDONS[kind, name] = Addon(kind, name, place.package, place.version, source, meaning)
    return _ADDONS[kind, name]


def _source(module: str) -> str | None:
    """The digest of a module's source, or of that of the package that it is in; None: there is no such module."""
    importlib.invalidate_caches()  # a file may have been written just now
    found, digest = _root(module), hashlib.sha256()
    if found is None:
        return None
    path, _ = found
    for file in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(path.parent).as_posix()}/{len(content)}/".encode() + content)
    return digest.hexdigest()


def _meaning(place: _Place) -> str:
    """The first line of the docstring of an add-on, read without importing it; "" where there is none."""
    found = _root(place.module)
    if found is None:
        return ""
    path, inner = found
    within = path.parent.joinpath(*inner)
    file = path if not inner else within / "__init__.py" if within.is_dir() else within.with_suffix(".py")
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError):  # which importing it tells
        return ""
    kinds = ast.ClassDef | ast.FunctionDef
    said = (ast.get_docstring(each) for each in tree.body if isinstance(each, kinds) and each.name == place.attribute)
    return next((doc.splitlines()[0] for doc in said if doc), "")


def _root(module: str) -> tuple[Path, Sequence[str]] | None:
    """The file of a module, or of the outermost package that it is in, but for namespaces, which have none; and the
    names from there to the module."""
    name, parts = "", module.split(".")
    for number, part in enumerate(parts, 1):
        name = f"{name}.{part}" if name else part
        spec = find_spec(name)  # which imports namespaces alone
        if spec is None or (spec.origin is not None and not spec.has_location):
            return None
        if spec.origin is not None:
            return Path(spec.origin), parts[number:]
    return None
