"""Texts in files, so that a run that was cut off goes on where it was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fsd_calib import SpeculativeDecoder
from fsd_common.digests import facts_digest
from fsd_common.files import atomic_write
from fsd_decoding.engine.engine import ENGINE_VERSION
from fsd_decoding.models.fingerprint import model_fingerprint
from lib.rules.curves import Columns
from lib.rules.judges import Panel
from lib.rules.texts import Text, Texts

_PART = 100  # problems in a file
_COLUMNS = ("problem", "judge", *Text._fields)


SEED = 81_000  # of the problems; those of the pool are the same


def folder_of(texts: Path, decoder: SpeculativeDecoder, task: str, panel: Panel) -> Path:
    """Returns the folder of a task's texts, which is another one for whatever they depend on."""
    facts = {
        "models": [model_fingerprint(model) for model in (decoder.target, decoder.draft)], "task": task,
        "temperature": decoder.sampling.temperature, "draft_length": decoder.draft_length,
        "seed": [SEED, decoder.seed], "judges": panel.judges, "engine": ENGINE_VERSION,
    } | ({} if panel.thresholds is None else {"thresholds": panel.thresholds})  # fmt: skip
    return texts / facts_digest(facts)[:16]


class Stored:
    """The texts of numbered problems under one panel.

    Args:
        folder: of these texts alone; made if there is none.
    """

    def __init__(self, folder: Path, panel: Panel) -> None:
        self._folder, self._panel = folder, panel
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def numbers(self) -> set[int]:
        """The problems whose texts are stored."""
        return {
            number for part in self._parts for number in pq.read_table(part, columns=["problem"])["problem"].to_pylist()
        }

    def add_all(self, finished: Iterable[tuple[int, Texts]], in_file: int = _PART) -> None:
        """Stores texts as they are finished.

        Args:
            in_file: problems in a file; what is finished and in none is lost with the process.
        """
        waiting: list[tuple[int, Texts]] = []
        for each in finished:
            waiting.append(each)
            if len(waiting) == in_file:
                self._store(waiting)
                waiting = []
        if waiting:
            self._store(waiting)

    def columns(self, problems: float = math.inf) -> Sequence[Columns]:
        """Returns the texts of the first problems by judge, in the order of the panel's, then of problem and T."""
        table = pa.concat_tables(pq.read_table(part) for part in self._parts)
        all_texts = {name: table[name].to_numpy() for name in table.column_names}
        of = []
        for place in range(len(self._panel.judges)):
            chosen = np.flatnonzero((all_texts["judge"] == place) & (all_texts["problem"] < problems))
            order = chosen[np.lexsort((all_texts["lo"][chosen], all_texts["problem"][chosen]))]
            of.append({name: values[order] for name, values in all_texts.items()})
        return of

    @property
    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("*.parquet"))

    def _store(self, finished: Sequence[tuple[int, Texts]]) -> None:
        rows = [
            (number, place, *text)
            for number, texts in finished
            for place, judge in enumerate(self._panel.judges)
            for text in texts[judge]
        ]
        table = pa.table(dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True)))
        with atomic_write(
            self._folder / f"{finished[0][0]:05}.parquet"
        ) as file:  # of a problem that no other begins with
            pq.write_table(table, file)
