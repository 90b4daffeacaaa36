"""What a calibration was asked for, saved beside its profile as a file that repeats it (see `run_file`)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from fsd_calib.calibration.drafts import drafts_of, models_among
from fsd_calib.calibration.output_folder import Asked
from fsd_calib.calibration.predictor import AUTO
from fsd_calib.calibration.run_config import RunConfig
from fsd_calib.calibration.run_file import NAME, DecodingSection, GoalSection, RunFile, RunSection, SamplingSection
from fsd_calib.search.storage_url import is_url, without_password
from fsd_common.errors import UsageError
from fsd_decoding.config import DecodingConfig
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.model_options import USUAL, ModelOptions
from fsd_decoding.profile.io import FILE_NAME, write_atomically
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tree_shape import CHAIN

_PATHS = ("data", "out", "cache", "state")
_HEADER = "# What fsd-calibrate was asked for; fsd-calibrate --config with this file repeats it (docs/commands.md).\n"


class _Dumper(yaml.SafeDumper):
    """Writes lists in one line."""

    def represent_list(self, data: Any) -> yaml.SequenceNode:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(list, _Dumper.represent_list)


class _UnnamedError(Exception):
    """Something is an object, which a file cannot name."""


def save_run(
    calibration: Asked, profile: ThresholdProfile | None = None, certify: Path | None = None,
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
    folder = calibration.config.path("out")
    if folder is None or (profile is not None and profile.file is not None and profile.file.name != FILE_NAME):
        return
    try:
        content = _content(calibration, certify, engines)
    except _UnnamedError:
        (folder / NAME).unlink(missing_ok=True)
        return
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    try:
        write_atomically(folder / NAME, _HEADER + _note(calibration.config) + text, "run file")
    except UsageError as error:  # what took hours is done, and its profile is saved
        warnings.warn(str(error), stacklevel=2)


def _content(calibration: Asked, certify: Path | None, engines: Sequence[str]) -> dict[str, Any]:
    """What the file says, in its order."""
    content = {
        "task": _task(calibration.task),
        "target": _place(calibration.target),
        **_drafts(drafts_of(calibration.draft), certify is not None),
        "certify": None if certify is None else _place(certify),
        "goal": _known(calibration.goal, GoalSection),
        "decoding": {"seed": calibration.decoding.seed} if certify else _decoding(calibration.decoding),
        "run": _run(calibration.config, engines),
    }
    return {name: content[name] for name in RunFile.model_fields if content.get(name) is not None}


def _drafts(drafts: Sequence[Any], certify: bool) -> dict[str, Any]:
    """What drafts; only an n-gram draft has to be named, and nothing that the profile to certify names."""
    models, heads = models_among(drafts), [draft for draft in drafts if isinstance(draft, Eagle)]
    ngrams = [draft for draft in drafts if isinstance(draft, NGram)]
    if certify:
        heads, ngrams = [head for head in heads if head.revision is None], []
    if any(head.revision is not None for head in heads) or any(ngram != NGram() for ngram in ngrams):
        raise _UnnamedError
    kinds = ["model"] * bool(models) + ["eagle"] * bool(heads) + ["ngram"]
    return {
        "draft": _one_or_several([_place(model) for model in models]) if models else None,
        "head": _one_or_several([_place(head.source) for head in heads]) if heads else None,
        "drafter": _one_or_several(kinds) if ngrams else None,
    }


def _decoding(decoding: DecodingConfig) -> dict[str, Any]:
    given = _known(decoding, DecodingSection)
    sampling = decoding.sampling
    drawn = {name: getattr(sampling, name) for name in SamplingSection.model_fields}
    given["sampling"] = {name: value for name, value in drawn.items() if value is not None}
    if "tree" in given:
        trees = given["tree"] if isinstance(given["tree"], (list, tuple)) else [given["tree"]]
        given["tree"] = [CHAIN if tree is None else tree.text for tree in trees]
    for name in ("rule", "divergence", "draft_length", "threshold_policy", "tree"):
        if name in given:
            given[name] = _one_or_several(given[name])
    if "stop_policy" in given and str(given["stop_policy"]) != AUTO:
        given["stop_policy"] = _place(given["stop_policy"])
    return _plain(given)


def _run(config: RunConfig, engines: Sequence[str]) -> dict[str, Any]:
    given = _known(config, RunSection)
    given |= {name: str(Path(given[name]).absolute()) for name in _PATHS if name in given}
    given["engine"] = _one_or_several(engines or [config.engine])
    for name in ("model_kwargs", "draft_model_kwargs"):
        if name in given:
            given[name] = _keywords(given[name])
    if config.storage is not None:
        given["storage"] = config.storage if is_url(config.storage) else _place(Path(config.storage))
        if without_password(config.storage) != config.storage:
            del given["storage"]
    return _plain({name: value for name, value in given.items() if value != {}})


def _known(settings: Any, section: type[GoalSection | DecodingSection | RunSection]) -> dict[str, Any]:
    """The fields that a file can hold and that are not None."""
    named = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name in section.model_fields}
    return {name: named[name] for name in section.model_fields if named[name] is not None}


def _keywords(given: Any) -> dict[str, Any]:
    options = ModelOptions.of(given)
    own = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "others"}
    return {} if options == USUAL else {n: v for n, v in own.items() if v is not None} | dict(options.others)


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


def _one_or_several(values: Any) -> Any:
    if isinstance(values, (str, int)):
        return values
    return values[0] if len(values) == 1 else list(values)


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same; `_UnnamedError`: something in it is neither a text, a number nor a collection of these."""
    try:
        yaml.safe_dump(dict(given))
    except yaml.YAMLError:
        raise _UnnamedError from None
    return dict(given)


def _note(config: RunConfig) -> str:
    """A remark on what is left out."""
    if config.storage is None or without_password(config.storage) == config.storage:
        return ""
    return "# --storage is not repeated here, as its URL may hold a password; give it on the command line.\n"
