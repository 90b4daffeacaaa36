"""A calibration as a file in YAML, `run.yaml`: read, where errors name file, key and rule, and saved beside a profile.

Its keys are the fields in `fsd_calib.options`. One that is missing means the default of that field. Paths mean what
they mean on the command line. Reading imports nothing heavy.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import yaml
from pydantic import create_model, model_validator

from fsd_calib.options.goal import Goal
from fsd_calib.options.job import Job
from fsd_calib.options.run_config import RunConfig
from fsd_calib.options.search_space import SearchSpace
from fsd_calib.search.storage_url import is_url, without_password
from fsd_common.addons import looking_in
from fsd_common.errors import UsageError
from fsd_common.option import options_in, other_names
from fsd_common.settings import Settings
from fsd_common.strict_yaml import Strict, read_yaml

if TYPE_CHECKING:
    from fsd_calib.calibration.output_folder import Asked
    from fsd_decoding.profile.server_profile import ServerProfile
    from fsd_decoding.profile.threshold_profile import ThresholdProfile

NAME = "run.yaml"
_HEADER = "# What fsd-calibrate was asked for; fsd-calibrate --config with this file repeats it (docs/commands.md).\n"


class Section(Strict):
    """Keys of a file; see `section_of`."""

    _others: ClassVar[Mapping[str, str]] = {}  # fields by the other name that they have

    @model_validator(mode="before")
    @classmethod
    def _by_field(cls, written: Any) -> Any:
        if not isinstance(written, dict):
            return written
        if doubled := next((other for other, name in cls._others.items() if {other, name} <= written.keys()), None):
            raise ValueError(f"{doubled} and {cls._others[doubled]} mean the same; give one of them")
        return {cls._others.get(name, name): value for name, value in written.items()}

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are written, with their values, by the names that they have in Python."""
        own: dict[str, Any] = {}
        for name in type(self).model_fields:
            if name in self.model_fields_set:
                value = getattr(self, name)
                own |= value.given if isinstance(value, Section) else {name: value}
        return own


def section_of(model: type[Settings], base: type[Section] = Section, **more: Any) -> Any:
    """Returns the keys of a file that are fields of a model, with the same rules for each alone."""
    keys: dict[str, dict[str, Any]] = {"": {}}
    for name, option in options_in(model).items():
        if option.file:
            field = model.model_fields[name]
            kind: Any = field.annotation
            rules = field.metadata
            if option.written is not None:
                kind, rules = option.written, []
            keys.setdefault(option.within, {})[name] = (Annotated[kind | None, *rules] if rules else kind | None, None)
    own = keys.pop("")
    for name, within in keys.items():
        inner: Any = create_model(f"{model.__name__}.{name}", __base__=Section, **within)
        own[name] = (inner, inner())
    made = create_model(model.__name__, __base__=base, **own, **more)
    made._others = other_names(model)
    return made


class RunFile(Section):
    """A whole file: the fields of `Job`, and sections with those of the three other models."""

    goal: Section = Section()
    decoding: Section = Section()
    run: Section = Section()

    @model_validator(mode="after")
    def _searches_nothing_that_is_certified(self) -> RunFile:
        job = self.job
        if job.get("certify") is not None and (more := set(self.decoding.given) - {"seed"}):
            raise ValueError(
                f"certify takes the profile's own setting and searches nothing; leave {min(more)} out of decoding"
            )
        if job.get("certify") is not None and job.get("drafter") is not None:
            raise ValueError("certify takes the profile's own draft; leave drafter out, or give draft or head")
        return self

    @property
    def job(self) -> dict[str, Any]:
        """The task and its models, see `Job`."""
        return {name: getattr(self, name) for name in Job.model_fields if name in self.model_fields_set}


_SECTIONS: dict[str, type[Settings]] = {"goal": Goal, "decoding": SearchSpace, "run": RunConfig}
_CHECKED = section_of(
    Job, RunFile, **{name: (section := section_of(model), section()) for name, model in _SECTIONS.items()}
)


def read_run_file(path: Path) -> RunFile:
    """Returns what a file says.

    Args:
        path: of the file, or of the folder that holds it under its usual name.

    Raises:
        UsageError: It cannot be read, is no YAML, or breaks a rule.
    """
    file = path / NAME if path.is_dir() else path
    with looking_in(file.parent):
        found: RunFile = read_yaml(file, _CHECKED, "run file", "docs/commands.md")
    return found


class _Dumper(yaml.SafeDumper):
    """Writes lists in one line."""

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(list, _Dumper.represent_list)


class _UnnamedError(Exception):
    """Something is an object, which a file cannot name."""


def save_run(
    calibration: Asked, profile: ThresholdProfile | ServerProfile | None = None, certify: Path | None = None,
    engines: Sequence[str] = (),
) -> None:  # fmt: skip
    """Saves what was asked for in the output folder, where there is one and its profile is of this.

    What holds loaded models, a `Task` or other objects cannot be named in a file: nothing is saved then, and what
    another calibration saved there is removed. A file that cannot be written is a warning.

    Args:
        profile: what the calibration made, or the first of several engines, each of which has a folder of its own.
        certify: the profile that holds the setting to certify; None: one was searched.
        engines: several that certify it in turn; by default the calibration's own.
    """
    from fsd_decoding.profile.io import FILE_NAME, write_atomically

    folder, storage = calibration.config.path("out"), calibration.config.storage
    if folder is None or (profile is not None and profile.file is not None and profile.file.name != FILE_NAME):
        return
    try:
        content = _content(calibration, certify, engines)
    except _UnnamedError:
        (folder / NAME).unlink(missing_ok=True)
        return
    note = ""
    if storage is not None and without_password(storage) != storage:
        del content["run"]["storage"]
        note = "# --storage is not repeated here, as its URL may hold a password; give it on the command line.\n"
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    try:
        write_atomically(folder / NAME, _HEADER + note + text, "run file")
    except UsageError as error:  # what took hours is done, and its profile is saved
        warnings.warn(str(error), stacklevel=2)


def _content(calibration: Asked, certify: Path | None, engines: Sequence[str]) -> dict[str, Any]:
    """What the file says, in its order."""
    from fsd_calib.calibration.drafts import drafts_of

    config, storage = calibration.config, calibration.config.storage
    run = saved(config) | {"engine": _one_or_several(engines or [config.engine])}
    if storage is not None and not is_url(storage):
        run["storage"] = str(Path(storage).absolute())
    server = calibration.server
    models = {} if server is not None else {
        "target": _place(calibration.target), **_drafts(drafts_of(calibration.draft), certify is not None)
    }  # fmt: skip
    content = {
        "task": _task(calibration.task),
        "server": None if server is None else server.model_dump(mode="json", exclude_unset=True),
        **models,
        "certify": None if certify is None else _place(certify),
        "goal": saved(calibration.goal),
        "decoding": saved(calibration.decoding) if certify is None else {"seed": calibration.decoding.seed},
        "run": run,
    }
    return _plain({name: value for name, value in content.items() if value is not None})


def saved(settings: Settings) -> dict[str, Any]:
    """Returns the fields that a file can hold and that are not None, as `section_of` their model reads them."""
    content: dict[str, Any] = {}
    for name, option in options_in(type(settings)).items():
        value = getattr(settings, name)
        if value is None or not option.file:
            continue
        value = value if option.saved is None else option.saved(value)
        if value is not None and value != {}:
            section = content.setdefault(option.within, {}) if option.within else content
            section[name] = _one_or_several(value) if isinstance(value, tuple | list) else value
    return content


def _drafts(drafts: Sequence[Any], certify: bool) -> dict[str, Any]:
    """What drafts; only n-grams and add-ons have to be named, and nothing that the profile to certify names."""
    from fsd_calib.calibration.drafts import models_among
    from fsd_decoding.drafters.eagle import Eagle
    from fsd_decoding.drafters.named import NamedDrafter
    from fsd_decoding.drafters.ngram import NGram
    from fsd_decoding.drafters.vllm_draft import VllmDraft

    models, heads = models_among(drafts), [draft for draft in drafts if isinstance(draft, Eagle)]
    ngrams = [draft for draft in drafts if isinstance(draft, NGram)]
    others = [draft.name for draft in drafts if isinstance(draft, NamedDrafter)]
    if certify:
        heads, ngrams, others = [head for head in heads if head.revision is None], [], []
    if any(head.revision is not None for head in heads) or any(ngram != NGram() for ngram in ngrams):
        raise _UnnamedError
    kinds = ["model"] * bool(models) + ["eagle"] * bool(heads) + ["ngram"] * bool(ngrams) + others
    return {
        "draft": _one_or_several([_place(model) for model in models]) if models else None,
        "head": _one_or_several([_place(head.source) for head in heads]) if heads else None,
        "drafter": _one_or_several(kinds) if ngrams or others else None,
        "speculative_config": next((draft.values for draft in drafts if isinstance(draft, VllmDraft)), None),
    }


def _task(task: Any) -> str:
    """A task's name, or the absolute path of the file that describes it."""
    if not isinstance(task, str):
        raise _UnnamedError
    return str(Path(task).absolute()) if task.endswith((".yaml", ".yml")) else task


def _place(given: Any) -> str:
    """The id of a model, or an absolute path where there is such a file or folder here."""
    if not isinstance(given, (str, os.PathLike)):
        raise _UnnamedError
    path = Path(given)
    return str(path.absolute()) if isinstance(given, Path) or path.exists() else os.fspath(given)


def _one_or_several(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same; `_UnnamedError`: something in it is neither a text, a number nor a collection of these."""
    try:
        yaml.safe_dump(dict(given))
    except yaml.YAMLError:
        raise _UnnamedError from None
    return dict(given)
