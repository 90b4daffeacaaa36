"""Labels as they were collected, with their manifest."""

from __future__ import annotations

import os
from typing import Any

import pandas as pd

from fsd_collectors.manifest import LabelManifest
from fsd_collectors.store.reading import Traces, load_traces
from fsd_common.errors import UsageError


def read_labels(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """Returns the labels in a folder, one row for each labelled mismatch; those of an unfinished run too.

    The columns are those of `fsd_collectors.schema.label_tables`, after `task`, the task's name.

    Raises:
        UsageError: the folder holds no labels, or is damaged.
    """
    traces, manifest = _opened(folder)
    labels = traces.to_pandas(table="labels")
    labels.insert(0, "task", manifest.task.name)
    return labels


def read_about(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the manifest of labels, as JSON has it: models, task, sampling and how labels were made.

    Raises:
        UsageError: as `read_labels`.
    """
    return _opened(folder)[1].model_dump(mode="json")


def _opened(folder: str | os.PathLike[str]) -> tuple[Traces, LabelManifest]:
    traces = load_traces(folder)
    if not isinstance(traces.manifest, LabelManifest):
        raise UsageError(
            f"folder {str(traces.path)!r} holds traces, {traces.manifest.way}, and no labels; collect those with "
            "fsd-collect --judge outcome"
        )
    return traces, traces.manifest
