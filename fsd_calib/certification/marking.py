"""Problems that were looked at outside of a calibration, which may not certify later.

Who decodes a test set under thresholds, picks the best and then certifies it there has chosen by what it is tested on:
of 16 settings that keep exactly what is wanted, the best passes in every fourth case. So whatever decodes under a
threshold, or trains a draft, records it in the ledger, as a search does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fsd_calib.certification.attempt_ledger import AttemptLedger, Numbered
from fsd_calib.tasks.kinds.multiple_choice import lettered, options_of
from fsd_calib.tasks.rows import Row
from fsd_collectors.split import content_key, hashed, row_hash
from fsd_common.errors import UsageError
from fsd_common.user_folders import default_state
from fsd_decoding.models.fingerprint import family_id

LEDGER = "ledger.sqlite"
"""Its name in the folder of the user's state."""
_QUESTIONS = ("question", "problem")


@dataclass(frozen=True)
class Asked:
    """A problem that somebody asked, with its choices and the row of its source where there are any.

    The ledger knows it again by hashes, and does not keep what was asked.
    """

    text: str
    row: Mapping[str, Any] | None = None
    choices: tuple[str, ...] = ()

    @classmethod
    def of_row(cls, row: Mapping[str, Any] | None, prompt: str) -> Self:
        """Returns what a prompt made of a row asks: its question (or its problem, as MATH has it), with its choices as
        tasks show them; or the prompt, where there is none."""
        columns: Mapping[str, Any] = row or {}
        question = next((columns[name] for name in _QUESTIONS if isinstance(columns.get(name), str)), None)
        if row is None or question is None:
            return cls(prompt, row)
        with suppress(UsageError):  # it has none, or they are something else
            options, _ = options_of(Row("the row", row), row.get("choices"))
            return cls(lettered(question.strip(), options), row, options)
        return cls(question, row)

    @property
    def id(self) -> int:
        return self.key

    @property
    def key(self) -> int:
        return hashed(content_key(self.text, self.choices))

    @property
    def row_key(self) -> int:
        return self.key if self.row is None else row_hash(self.row)

    @property
    def answer_key(self) -> int:
        return 0

    @property
    def question(self) -> str:
        return ""


def mark(target: Any, problems: Iterable[Numbered], state: Path | None = None) -> None:
    """Records that problems influenced a choice for a target: no attempt may certify on them any more.

    Where the ledger cannot be used it warns of that: what is decoded is no certificate, and needs none.

    Args:
        state: Folder of the ledger; None: the user's.
    """
    try:
        with AttemptLedger((state or default_state()) / LEDGER) as ledger:
            ledger.tuned_on(family_id(target), problems)
    except UsageError as error:
        why, _, _ = str(error).partition("; ")  # what follows is advice to who certifies
        warnings.warn(
            f"{why}; so these problems are not recorded as looked at, and must not be certified on later", stacklevel=2
        )
