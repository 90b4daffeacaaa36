"""What the documentation says about the source is true of it, and imports go one way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from support.paths import DOCS, PAGES, ROOT, page_name, public_names
from support.sources import import_graph, modules, package_folders

ARCHITECTURE = DOCS / "architecture.md"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_path_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    ours = {*package_folders(), *(path.name for path in ROOT.iterdir())} - ignored
    named = [word for word in _code_words(page) if "/" in word and word.split("/")[0] in ours]
    assert [path for path in named if not any((folder / path).exists() for folder in _roots())] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    dotted = [word for word in _code_words(page) if re.fullmatch(r"fsd_\w+(\.\w+)+", word)]
    public = public_names()  # which are imported by a test of their own
    assert [name for name in dotted if name not in public and not _is_defined(name)] == []


def test_every_class_and_function_that_the_architecture_names_exists() -> None:
    defined = set().union(*map(_definitions, modules().values()))
    quoted = (word.partition("(")[0] for word in re.findall(r"`([^`\n]+)`", _text(ARCHITECTURE)))
    names = [word for word in quoted if re.fullmatch(r"[A-Z]\w+(\.\w+)?|[a-z]+_[a-z_]+", word)]
    assert len(names) > 50
    assert [name for name in names if name not in defined | set(package_folders())] == []


def test_the_architecture_names_every_folder_of_the_packages() -> None:
    folders = [path.parent.relative_to(ROOT) for root in package_folders().values() for path in root.glob("*/*.py")]
    assert folders
    assert [str(folder) for folder in set(folders) if f"`{folder.as_posix()}`" not in _text(ARCHITECTURE)] == []


@pytest.mark.parametrize("package", sorted(set(package_folders()) - {"fsd_data"}))
def test_pictures_show_what_the_folders_of_a_package_import(package: str) -> None:
    arrows = _arrows(_picture(f"folders of {package}"))
    imports = _between({f"{package}.{name}": name for name in _nodes(arrows)})
    assert arrows <= imports, "an arrow that is no import"
    assert imports <= _closed(arrows), "an import that no path of arrows shows"


def test_the_picture_of_the_packages_shows_what_they_import() -> None:
    arrows = _arrows(_picture("packages"))
    imports = _between({name: name for name in package_folders()})
    assert _nodes(arrows) == set(package_folders())
    assert arrows <= imports, "an arrow that is no import"
    assert imports <= _closed(arrows), "an import that no path of arrows shows"


def _roots() -> list[Path]:
    """Where paths may begin: at the top, or beside an import package."""
    return [ROOT, *(folder.parent for folder in package_folders().values())]


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _code_words(page: Path) -> Iterator[str]:
    """Words in backticks, of commands too, without trailing slashes; patterns (`*`) are left out."""
    for code in re.findall(r"`([^`\n]+)`", _text(page)):
        yield from (word.rstrip("/,") for word in code.split() if re.fullmatch(r"[\w./,-]+", word))


def _is_defined(dotted: str) -> bool:
    """Whether a dotted name is a module, or what a module defines or hands on."""
    module, _, name = dotted.rpartition(".")
    known = modules()
    return dotted in known or (module in known and re.search(rf"\b{name}\b", _text(known[module])) is not None)


def _definitions(path: Path) -> set[str]:
    """Names of a file's classes, functions and constants, of methods also as `Class.method`."""
    names = set()
    for node in ast.walk(ast.parse(_text(path))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _picture(title: str) -> str:
    """The Mermaid block with this comment."""
    blocks = re.findall(r"```mermaid\n(.*?)```", _text(ARCHITECTURE), flags=re.DOTALL)
    (block,) = [block for block in blocks if f"%% {title}\n" in block]
    return str(block)


def _arrows(picture: str) -> set[tuple[str, str]]:
    chains = [re.sub(r"\[[^]]*\]", "", line).split("-->") for line in picture.splitlines() if "-->" in line]
    return {(a.strip(), b.strip()) for chain in chains for a, b in pairwise(chain)}


def _nodes(arrows: Iterable[tuple[str, str]]) -> set[str]:
    return {node for arrow in arrows for node in arrow}


def _between(shown: dict[str, str]) -> set[tuple[str, str]]:
    """Imports between the modules that are shown, each with all that lies in it, by the names they have there."""

    def node_of(module: str) -> str | None:
        return next((name for root, name in shown.items() if f"{module}.".startswith(f"{root}.")), None)

    imports = {(node_of(module), node_of(other)) for module, others in import_graph().items() for other in others}
    return {(a, b) for a, b in imports if a is not None and b is not None and a != b}


def _closed(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """With all arrows that follow from others."""
    while more := {(a, d) for a, b in arrows for c, d in arrows if b == c} - arrows:
        arrows = arrows | more
    return arrows


MAY_IMPORT = {
    "fsd_calib": {"fsd_predictors", "fsd_collectors", "fsd_decoding", "fsd_common", "fsd_data"},
    "fsd_predictors": {"fsd_collectors", "fsd_decoding", "fsd_common"},
    "fsd_collectors": {"fsd_decoding", "fsd_common"},
    "fsd_decoding": {"fsd_common"},
    "fsd_common": set(),
    "fsd_data": set(),
}


def test_every_package_is_known_to_the_rule() -> None:
    assert set(package_folders()) == set(MAY_IMPORT)


def test_imports_go_one_way() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in import_graph().items()
        for other in others
        if (package := module.split(".")[0]) != (origin := other.split(".")[0]) and origin not in MAY_IMPORT[package]
    ]
    assert not wrong


def test_no_module_imports_itself_in_a_circle() -> None:
    TopologicalSorter(import_graph()).prepare()  # raises CycleError, naming the circle


def test_no_folder_imports_itself_in_a_circle() -> None:
    """A folder counts as one, and so does each file that lies in a package beside its folders."""
    folders: dict[str, set[str]] = {}
    for module, others in import_graph().items():
        folders.setdefault(_folder(module), set()).update(_folder(other) for other in others)
    for folder, others in folders.items():
        others.discard(folder)
    TopologicalSorter(folders).prepare()


def _folder(module: str) -> str:
    """a.b.c: a.b, where a.b is a folder; a.b, where it is a file."""
    return ".".join(module.split(".")[:2])


def test_the_rule_sees_every_module() -> None:
    assert {"fsd_calib.cli.calibrate", "fsd_decoding.engine.engine", "fsd_data"} <= set(modules())
