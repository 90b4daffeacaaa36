"""The grader that a description asks for."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fsd_calib.tasks.base import Grader, Problem
from fsd_calib.tasks.grading import graders
from fsd_calib.tasks.grading.apart import Apart, renew
from fsd_calib.tasks.grading.expressions import same_expression
from fsd_calib.tasks.grading.python_tests import passes_tests
from fsd_calib.tasks.sandbox.preflight import checked_bwrap
from fsd_calib.tasks.yaml_task.schema import Description
from fsd_common.errors import UsageError

_OWN_SECONDS = 20.0  # CPU time of one call of the user's function


def grader_of(file: Path, description: Description) -> Grader:
    """Returns the grader of a description.

    Args:
        file: Of the description; modules beside it can be imported.

    Raises:
        UsageError: The function that it names cannot be imported, or the sandbox that it needs is not there.
    """
    grader = _grader(file, description)
    return grader if description.extract is None else graders.extracting(description.extract, grader)


def grading_of(file: Path, description: Description) -> str:
    """Returns what tells the grader of a description from others: its settings, and the code that it runs."""
    settings = description.model_dump(include={"grader", "tolerance", "similarity", "extract", "function"})
    if description.function is not None:
        module = inspect.getmodule(_imported(file, description.function))
        code = Path(module.__file__).read_bytes() if module is not None and module.__file__ else b""
        settings["code"] = hashlib.sha256(code).hexdigest()
    return json.dumps(settings, sort_keys=True)


def _grader(file: Path, description: Description) -> Grader:
    match description.grader:
        case "numeric":
            return graders.near_number(description.tolerance or 0.0)
        case "edit":
            assert description.similarity is not None
            return graders.similar(description.similarity)
        case "python":
            assert description.function is not None
            return _own(file, description.function)
        case "python-tests":
            checked_bwrap()  # before anything is decoded that could not be graded
            return passes_tests
        case name:
            return {"exact": graders.same_text, "contains": graders.contains, "choice": graders.same_choice,
                    "math": same_expression}[name]  # fmt: skip


def _own(file: Path, path: str) -> Grader:
    """A grader that calls the user's function with the reference and the text."""
    _imported(file, path)  # before anything is decoded that could not be graded
    renew()  # its file may have changed
    call = Apart(f"{__name__}:own_function", (str(file.resolve()), path), _OWN_SECONDS)

    def own(problem: Problem, text: str) -> bool:
        return bool(call(problem.reference, text))

    return own


def own_function(file: str, path: str) -> Callable[[str, str], bool]:
    """Returns the user's function, for the graders' process. UsageError: it cannot be imported."""
    function = _imported(Path(file), path)
    return lambda reference, text: bool(function(reference, text))


def _imported(file: Path, path: str) -> Callable[[str, str], Any]:
    module, _, name = path.replace(":", ".").rpartition(".")
    _refuse_standard(file, path, module)
    sys.path.insert(0, str(file.parent.resolve()))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it would stand for a change of the same second
    try:
        function = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # it is the user's code: whatever it raises
        raise UsageError(
            f"task file {file}: function {path} cannot be imported ({type(error).__name__}: {error}); its module must "
            "be installed, or beside the file"
        ) from error
    finally:
        sys.dont_write_bytecode = writes
        sys.path.pop(0)
    _refuse_standard(file, path, str(getattr(function, "__module__", None) or ""))
    if not callable(function):
        raise UsageError(f"task file {file}: {path} is {function!r:.40}; it must be a function")
    return function  # type: ignore[no-any-return]


def _refuse_standard(file: Path, path: str, module: str) -> None:
    """UsageError: a module is of Python itself, as that of `builtins.eval` is, which would run texts and data."""
    if module.partition(".")[0] in {*sys.stdlib_module_names, "builtins"}:
        raise UsageError(
            f"task file {file}: function {path} is of Python's own module {module}; name one in a file beside this "
            "one, or in a package that you installed"
        )
