"""What options say that cannot be, as far as it shows before torch is loaded, which takes seconds.

What only the libraries know, such as whether a device is there or a model fits, they are asked later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from fsd_calib.cli.choices import DEVICES, DTYPES
from fsd_calib.tasks.sources.rows import check_data_file
from fsd_common.errors import UsageError
from fsd_decoding.hub import check_source
from fsd_decoding.workers.ray_cluster import check_answers
from fsd_predictors import files as predictor_files

_BACKENDS = "torch.backends"  # entry points of packages whose devices have names that torch itself does not know


def check_words(*options: tuple[str, Iterable[str | None] | None, Sequence[str]]) -> None:
    """Raises UsageError where an option has a word that it does not take.

    Args:
        options: each an option, its words (None: not given), and those that it takes.
    """
    for option, words, known in options:
        if unknown := next((word for word in words or () if word is not None and word not in known), None):
            raise UsageError(f"{option} is {unknown!r}; it must be one of {', '.join(known)}")


def divergences(names: Iterable[str | None] | None) -> list[str]:
    """Returns the names of divergences without the number of tokens that they are over, where that is one."""
    return [re.sub("@[1-9][0-9]*$", "", name) for name in names or () if name is not None]


def check_place(device: str | None, dtype: str | None) -> None:
    """Raises UsageError where there is no such dtype, or no device can have this name."""
    check_words(("--dtype", [dtype], (*DTYPES, "float64")))
    if device is None:
        return
    kind, colon, number = device.partition(":")
    known = kind in DEVICES or (kind.isidentifier() and entry_points(group=_BACKENDS))
    if not known or (colon and not number.isdecimal()):
        raise UsageError(
            f"--device is {device!r}; it must be cpu, cuda or another kind of device, maybe with a number, as in cuda:0"
        )


def check_folders(folders: Mapping[str, Path | None]) -> None:
    """Raises UsageError where something else than a folder is in the way of one that an option names."""
    for option, folder in folders.items():
        way = () if folder is None else (folder, *folder.parents)
        found = next((each for each in way if each.exists()), None)
        if found is not None and not found.is_dir():
            raise UsageError(
                f"{option} is {str(folder)!r}, and {str(found)!r} is no folder; choose another, or remove it"
            )


def check_sources(models: Mapping[str, Sequence[str | None]], data: Path | None = None) -> None:
    """Raises UsageError where what names a model is neither a folder of one nor an id, or a data file cannot be read.

    Args:
        models: by what they are, such as "model".
    """
    for what, sources in models.items():
        for source in sources:
            if source is not None:
                check_source(what, source, configured=what != "tokenizer")
    if data is not None:
        check_data_file(data)


def check_predictor(source: str | Path | None) -> None:
    """Raises UsageError where a folder, unless one is trained ("auto"), holds no predictor."""
    if source is not None and str(source) != "auto":
        predictor_files.read(Path(source))


def check_cluster(address: str | None) -> None:
    """Raises UsageError where no cluster answers at an address of a host and a port."""
    if address is not None:
        check_answers(address)
