"""The output folder of a calibration: whose it is, and that no calibration writes over another's profile.

A folder belongs to the run that `asked.json` in it names. The same run is the same task, problems, models, goal, search
space and engine, however it is scheduled, timed and stored; only it, with as many problems or more, or --replace, goes
on there. And a profile that
certifies something, a setting or points of a front, is only ever replaced by one that does: what a run that certifies
nothing found is `not-certified.json` beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

from fsd_calib.calibration.drafts import drafts_of
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.options.server import ServerDescription
from fsd_calib.tasks.base import Task
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.files import naming
from fsd_common.settings import Settings
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.loading import is_source
from fsd_decoding.models.fingerprint import model_fingerprint
from fsd_decoding.profile.drafts import kind_of
from fsd_decoding.profile.io import FILE_NAME, write_atomically
from fsd_decoding.profile.server_profile import ServerProfile, load_any
from fsd_decoding.profile.threshold_profile import ThresholdProfile

MARK, NOT_CERTIFIED = "asked.json", "not-certified.json"
_OF_RUN = ("device", "group", "seeds", "design", "trials", "prompts")
_OF_LOADING = ("dtype", "engine_args", "model_kwargs", "draft_model_kwargs")  # a certified profile says these itself
_SHORT = 6  # characters of an identity that tell folders apart


class Asked(Protocol):
    """What a calibration was asked for, see `Calibration`."""

    @property
    def task(self) -> Any: ...
    @property
    def target(self) -> Any: ...
    @property
    def draft(self) -> Any: ...
    @property
    def goal(self) -> Goal: ...
    @property
    def decoding(self) -> SearchSpace: ...
    @property
    def config(self) -> RunConfig: ...
    @property
    def fixed(self) -> ThresholdProfile | None: ...
    @property
    def server(self) -> ServerDescription | None: ...


def identity_of(asked: Asked, engine: str | None = None) -> str:
    """Returns the same text for what is the same run but for the limit of problems, and another for what is not.

    Args:
        engine: the one whose turn it is, of several; None: the calibration's own.
    """
    names = _OF_RUN if asked.fixed is not None else (*_OF_RUN, *_OF_LOADING)
    facts = {
        "task": [asked.task.name, asked.task.fingerprint] if isinstance(asked.task, Task) else _model(asked.task),
        "target": _model(asked.target),
        "drafts": sorted(json.dumps(_model(draft)) for draft in drafts_of(asked.draft)),  # their order does not matter
        "goal": _named(asked.goal),
        "decoding": _named(asked.decoding),
        "run": [_named(getattr(asked.config, name)) for name in names],
        "data": _named(asked.config.path("data")),
        "engine": engine or asked.config.engine,
        "certified": None if asked.fixed is None else asked.fixed.digest,
        "server": None if asked.server is None else asked.server.identity,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def own_folder(base: Path, asked: Asked, engines: Sequence[str]) -> Path:
    """Returns the first folder that is free or this run's: `base`, the same with models and goal behind it, or also
    with a part of the identity.

    Args:
        engines: of several that certify in turn each has a folder of its name.
    """
    longer = base.with_name(f"{base.name}-{_words(asked)}")
    parts = {engine: engine if len(engines) > 1 else "" for engine in engines}
    for folder in (base, longer):
        if all(_is_free(folder / part) or is_own(folder / part, asked, engine) for engine, part in parts.items()):
            return folder
    return longer.with_name(f"{longer.name}-{_tag(asked)}")


def is_own(folder: Path, asked: Asked, engine: str | None = None) -> bool:
    """Returns whether the folder is this run's, or that of the same with fewer problems."""
    mark = _mark_of(folder)
    before, now = mark.get("limit"), asked.config.limit
    return mark.get("run") == identity_of(asked, engine) and (now is None or (before is not None and before <= now))


def check_own(folder: Path, asked: Asked) -> None:
    """Raises UsageError where the folder holds the profile of another run, unless that is to be replaced."""
    file = folder / FILE_NAME
    if asked.config.replace or not file.exists() or is_own(folder, asked):
        return
    same = _mark_of(folder).get("run") == identity_of(asked)
    other = "the same command with more problems" if same else f"another run ({_contents(file)})"
    raise UsageError(
        f"{named('out')} {str(folder)!r} holds a profile of {other}; give another "
        f"{named('out')}, or {named('replace')} to write over it"
    )


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Makes a folder; what it made is removed at the end where it is empty, as after bad input."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    with naming("the output folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for each in missing:
                each.rmdir()


def claim(folder: Path, asked: Asked) -> None:
    """Marks the folder as this run's, unless it holds a profile: then it is marked with the next one."""
    if not (folder / FILE_NAME).exists():
        _mark(folder, asked)


def save(profile: ThresholdProfile | ServerProfile, folder: Path, asked: Asked) -> bool:
    """Saves a profile, and returns whether as profile.json.

    What certifies nothing is written beside one that certifies something; and so is anything, under its run's name,
    where another run with the same folder has come first.
    """
    final = folder / FILE_NAME
    if not profile.certifies and _certifies(final):
        profile.save(folder / NOT_CERTIFIED)
        return False
    if final.exists() and not is_own(folder, asked) and not asked.config.replace:
        profile.save(folder / f"profile-{_tag(asked)}.json")
        return False
    profile.save(final)
    _mark(folder, asked)
    return True


def _mark(folder: Path, asked: Asked) -> None:
    mark = {"run": identity_of(asked), "limit": asked.config.limit}
    if _mark_of(folder) != mark:
        write_atomically(folder / MARK, json.dumps(mark) + "\n", "mark of the run")


def _mark_of(folder: Path) -> dict[str, Any]:
    """What is written of the run that a folder belongs to; empty: that is not known, or there is none."""
    with suppress(OSError, ValueError):
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if isinstance(mark, dict):
            return mark
    return {}


def _is_free(folder: Path) -> bool:
    return not _mark_of(folder) and not (folder / FILE_NAME).exists()


def _certifies(file: Path) -> bool:
    with suppress(UsageError):
        return load_any(file).certifies
    return False


def _contents(file: Path) -> str:
    """What a profile is of, in words."""
    try:
        profile = load_any(file, allow_edited=True)
    except UsageError:
        return "which cannot be read"
    if isinstance(profile, ServerProfile):
        return f"task {profile.task}, {profile.server.model} at {profile.server.url}, {profile.outcome}"
    wanted, speed = profile.certificate.wanted, profile.speed.wanted
    goal = f"{profile.certificate.acc} {wanted:g}" if wanted is not None else f"speed {speed:g}" if speed else "no goal"
    return f"task {profile.task}, {profile.target.id} with {profile.draft.id}, {goal}, {profile.outcome}"


def _tag(asked: Asked) -> str:
    """Tells runs apart that are called alike."""
    limit = asked.config.limit
    return f"{identity_of(asked)[:_SHORT]}{'' if limit is None else f'-{limit}'}"


def _words(asked: Asked) -> str:
    """Models and goal for the name of a folder, such as Qwen2.5-1.5B-with-0.5B-min-acc-0.9."""
    target, *drafts = (_short(model) for model in (asked.target, *drafts_of(asked.draft)))
    start = os.path.commonprefix([target, *drafts]).rpartition("-")[0]  # noqa: RUF071  of names, not of paths
    others = "-or-".join(draft.removeprefix(f"{start}-") for draft in drafts)
    goal = asked.goal
    kind = "pareto"
    if goal.min_acc is not None:
        kind = f"min-acc-{goal.min_acc:g}{'-absolute' * (goal.acc == 'absolute')}"
    elif goal.min_speed is not None:
        kind = f"min-speed-{goal.min_speed:g}"
    return re.sub(r"[^\w.=-]+", "-", f"{target}-with-{others}-{kind}")


def _short(model: Any) -> str:
    """The last part of a model's name."""
    source = model.source if isinstance(model, Eagle) else model
    if is_source(source):
        return Path(source).name
    return Path(getattr(model, "name_or_path", "")).name or str(kind_of(model))


def _model(given: Any) -> Any:
    """A model, a head or a task by name; a file or folder here by its absolute path."""
    if isinstance(given, Eagle):
        return [given.name, given.revision]
    if isinstance(given, (str, os.PathLike)):
        return str(Path(given).absolute()) if Path(given).exists() else os.fspath(given)
    return model_fingerprint(given) if kind_of(given) == "model" else _named(given)


def _named(value: Any) -> Any:
    """A setting as JSON can hold it: one in a list is the one alone, and an object is what it says that it is."""
    if isinstance(value, (list, tuple)):
        return _named(value[0]) if len(value) == 1 else [_named(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _named(each) for key, each in value.items()}
    if getattr(value, "identity", None) is not None:
        return _named(value.identity)
    if isinstance(value, Settings):
        return {name: _named(each) for name, each in value}
    if is_dataclass(value):
        return {each.name: _named(getattr(value, each.name)) for each in fields(value)}
    if value is None or isinstance(value, (int, float, str)):
        return value
    return _model(value) if isinstance(value, os.PathLike) else type(value).__name__
