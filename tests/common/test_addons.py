"""Code of users and of other packages, found by name: what is known of it, and what is refused in one line."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fsd_common.addons import Addon, Registry, addon, looking_in, unless_known
from fsd_common.errors import UsageError

NUMBERS = itertools.count()
Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes a module of a name of its own, and returns that name."""
    names = []

    def written(content: str) -> str:
        names.append(f"own_code_{next(NUMBERS)}")
        (tmp_path / f"{names[-1]}.py").write_text(content)
        return names[-1]

    yield written
    for name in names:
        sys.modules.pop(name, None)


def install(folder: Path, name: str, package: str, version: str, module: str) -> None:
    """Makes a folder hold an installed package with an entry point of a score."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[fsd_calib.scores]\n{name} = {module}:Number\n")


def numbers() -> Registry[int]:
    """Where what is registered is a number, and this package has `one`."""
    return Registry("score", {"one": 1}, lambda found, name: found if isinstance(found, int) else None, "a number")


def test_what_is_named_by_its_module_is_found_and_known_by_its_source(tmp_path: Path, write: Write) -> None:
    sys.path.append(str(tmp_path))
    first, same, other = write("Number = 7\n"), write("Number = 7\n"), write("Number = 8\n")
    registry = numbers()
    assert registry.find(f"{first}:Number") == 7
    found = [registry.addon(f"{name}:Number") for name in (first, same, other)]
    assert all(each and (each.kind, each.package, each.version) == ("score", None, None) for each in found)
    assert len({each.source for each in found if each}) == 3  # a module's own name counts too
    assert (registry.find("one"), registry.addon("one"), registry.find("two")) == (1, None, None)


def test_the_source_of_a_package_is_all_of_it(tmp_path: Path) -> None:
    sys.path.append(str(tmp_path))
    sources = []
    for helper in ("x = 1\n", "x = 2\n"):
        name = f"own_package_{next(NUMBERS)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "scores.py").write_text("Number = 3\n")
        (tmp_path / name / "helper.py").write_text(helper)
        found = addon("score", f"{name}.scores:Number")
        assert found is not None
        sources.append(found.source)
    assert sources[0] != sources[1]


def test_a_module_within_a_folder_without_a_package_is_known_by_its_file(tmp_path: Path) -> None:
    sys.path.append(str(tmp_path))
    name = f"own_folder_{next(NUMBERS)}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.py").write_text("Number = 3\n")
    before = addon("score", f"{name}.mine:Number")
    (tmp_path / name / "other.py").write_text("another = 1\n")
    assert addon("score", f"{name}.mine:Other") == replace(before, name=f"{name}.mine:Other")  # type: ignore[type-var]
    assert numbers().find(f"{name}.mine:Number") == 3


def test_nothing_is_imported_before_it_is_used(tmp_path: Path, write: Write) -> None:
    sys.path.append(str(tmp_path))
    name = write("raise RuntimeError('imported')\n")
    found = addon("score", f"{name}:Number")
    assert found is not None
    found.require("the profile")
    assert name not in sys.modules
    with pytest.raises(UsageError, match=rf"^score '{name}:Number': it cannot be used \(RuntimeError: imported\)"):
        numbers().find(f"{name}:Number")


def test_an_installed_entry_point_is_found_with_its_package_and_version(tmp_path: Path, write: Write) -> None:
    module = write("Number = 5\n")
    install(tmp_path, "five", "fives", "1.2", module)
    assert numbers().find("five") is None
    sys.path.append(str(tmp_path))
    registry = numbers()
    assert (registry.find("five"), registry.names) == (5, ["one", "five"])
    found = registry.addon("five")
    assert found is not None
    assert (found.name, found.package, found.version) == ("five", "fives", "1.2")
    assert unless_known("score", "five", ()) is None
    assert unless_known("score", "six", ("one",)) == "it must be one of one, five, or your own as module:Name"
    install(tmp_path, "five", "other-fives", "3", module)
    sys.path.append(str(tmp_path / "."))  # another path, so that packages are looked for again
    with pytest.raises(UsageError, match="'five' is there twice, of packages fives and other-fives; remove one"):
        numbers().find("five")


def test_a_folder_is_looked_in_where_that_is_said_and_after_pythons_path(tmp_path: Path, write: Write) -> None:
    name = write("Number = 4\n")
    with pytest.raises(UsageError, match=f"there is no module {name} on Python's path; put the folder that holds it"):
        addon("score", f"{name}:Number")
    with looking_in(tmp_path):
        assert numbers().find(f"{name}:Number") == 4
    assert sys.path[-1] == str(tmp_path.resolve())
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "numpy.py").write_text("Number = 1\n")  # which is there already
    with looking_in(tmp_path / "sandbox"), pytest.raises(UsageError, match="'numpy:Number': it cannot be used"):
        numbers().find("numpy:Number")
    with looking_in(tmp_path / "sandbox"), pytest.raises(UsageError, match=rf"path, nor in {tmp_path}.*sandbox; put"):
        addon("score", "nowhere:Number")
    assert str(tmp_path / "sandbox") not in sys.path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os:getcwd", "score 'os:getcwd' is of Python's own module os; put it in a file of its own"),
        ("__main__:Number", "score '__main__:Number' is of Python's own module __main__"),
        ("a b:c", "score is 'a b:c'; write your own as module:Name, such as mine:Name"),
        ("mine:", "score is 'mine:'; write your own as module:Name"),
        ("../mine:c", "score is '../mine:c'; write your own"),
        ("nowhere.at.all:Number", "there is no module nowhere.at.all on Python's path"),
        ("numpy:pi", "score 'numpy:pi': it is 3.14"),
    ],
)
def test_what_is_no_addon_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        numbers().find(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_version_or_source_is_refused_and_a_missing_one_says_what_to_install(
    tmp_path: Path, write: Write
) -> None:
    module = write("Number = 6\n")
    install(tmp_path, "six", "sixes", "2", module)
    sys.path.append(str(tmp_path))
    importlib.invalidate_caches()
    point, named = addon("score", "six"), addon("score", f"{module}:Number")
    assert point is not None
    assert named is not None
    for now in (point, named):
        now.require("the profile")
    cases: list[tuple[Addon, str]] = [
        (replace(point, version="1"), "was made with score 'six' of sixes 1, and here it is of sixes 2; install that"),
        (replace(point, source="0" * 64), "was made with another source of score 'six' (its digest was 000000000000, "),
        (replace(named, source="0" * 64), f"was made with another source of score '{module}:Number'"),
        (replace(point, name="ten"), "needs score 'ten', which is not installed here; pip install sixes==2"),
        (replace(named, name="gone:Number"), "needs score 'gone:Number', and there is no module gone on Python's path"),
    ]
    for then, message in cases:
        with pytest.raises(UsageError) as caught:
            then.require("the profile of 'arithmetic'")
        assert str(caught.value).startswith(f"the profile of 'arithmetic' {message}")


def test_what_was_made_with_an_addon_is_not_looked_for_in_folders(tmp_path: Path, write: Write) -> None:
    """A profile may come from elsewhere: only what is typed, or is beside what names it, is taken from a folder."""
    named = Addon("score", f"{write('Number = 9')}:Number", None, None, "0" * 64)
    with (
        looking_in(tmp_path),
        pytest.raises(UsageError, match=rf"path; {tmp_path} holds one; .* PYTHONPATH={tmp_path}"),
    ):
        named.require("the profile")


def test_an_addon_says_what_it_is_by_its_docstring(tmp_path: Path) -> None:
    sys.path.append(str(tmp_path))
    name = f"own_words_{next(NUMBERS)}"
    (tmp_path / name / "inner").mkdir(parents=True)
    for file, said in (("__init__.py", "Of all."), ("scores.py", "Of a module."), ("inner/__init__.py", "Within.")):
        (tmp_path / name / file).write_text(
            f'class One:\n    """{said}\n\n    More.\n    """\n\n\nclass Two:\n    pass\n'
        )
    found = [
        addon("score", f"{name}{module}:{attribute}")
        for module, attribute in (("", "One"), (".scores", "One"), (".inner", "One"), (".scores", "Two"), ("", "None"))
    ]
    assert [each.meaning for each in found if each] == ["Of all.", "Of a module.", "Within.", "", ""]
    assert name not in sys.modules
