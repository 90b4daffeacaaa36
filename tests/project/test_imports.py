"""Which parts of the project may import which, and that no room needs another that needs it."""

from __future__ import annotations

from graphlib import TopologicalSorter

from support.sources import import_graph, modules, package_folders

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
