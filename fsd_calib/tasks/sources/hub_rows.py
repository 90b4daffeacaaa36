"""Rows of a data set on the Hugging Face hub, or of a local folder of its name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fsd_calib.tasks.sources.rows import Row
from fsd_collectors.split import Part
from fsd_common.errors import UsageError
from fsd_decoding.hub import explain, fetch_data, hub


@dataclass(frozen=True)
class HubData:
    """A data set on the hub, and which of its splits are used for what.

    Attributes:
        id: Of the data set.
        parts: What its splits are used for; None: the source has no parts.
        configuration: Its configuration; None: the only one.
        files: Patterns of the files that it takes; others are not fetched.
        instead: The way out where the hub does not give it.
    """

    id: str
    parts: Mapping[str, Part | None]
    configuration: str | None = None
    files: Sequence[str] = ("*",)
    instead: str = "--data FILE takes a local file"

    def __str__(self) -> str:
        """How profiles name it: `openai/gsm8k main (train: tuning, test: certification)`."""
        used = ", ".join(f"{split}: {part}" if part else split for split, part in self.parts.items())
        return " ".join(filter(None, [self.id, self.configuration, f"({used})"]))

    def rows(self, task: str) -> Iterator[tuple[Row, Part | None]]:
        """Yields all rows of its splits, with the part that each belongs to.

        Raises:
            UsageError: The hub does not give it, and it is not in the local cache.
        """
        from datasets import load_dataset

        try:
            folder = fetch_data(self.id, self.files)  # `datasets` would wait for minutes for a hub that does not answer
            with _without_bars():
                splits = load_dataset(self.id if folder is None else str(folder), self.configuration)
            found = {split: splits[split] for split in self.parts}
        except Exception as error:  # network, hub, cache or disk: the way out is the same
            raise UsageError(
                f"task {task}: {self.id} cannot be loaded from {hub()} or its local cache: "
                f"{explain(self.id, error, 'hf download --repo-type dataset')}; {self.instead}"
            ) from error
        for split, part in self.parts.items():
            for number, row in enumerate(found[split], start=1):
                yield Row(f"{self.id}, {split}, row {number}", row), part


@contextmanager
def _without_bars() -> Iterator[None]:
    """Inside, `datasets` shows no bars of its own, unless its variable asks for them; those of downloads stay."""
    from datasets.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled() or "HF_DATASETS_DISABLE_PROGRESS_BARS" in os.environ:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
