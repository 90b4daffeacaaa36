"""Problems that were looked at outside of a calibration, which may not certify later.

Who decodes a test set under thresholds, picks the best and then certifies it there has chosen by what it is tested on:
of 16 settings that keep exactly what is wanted, the best passes in every fourth case. So whatever decodes under a
threshold, or trains a draft, records it in the ledger, as a search does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsd_calib.certification.attempt_ledger import AttemptLedger, Numbered
from fsd_collectors.split import content_key, hashed, row_hash
from fsd_common.user_folders import default_state
from fsd_decoding.models.fingerprint import family_id

LEDGER = "ledger.sqlite"
"""Its name in the folder of the user's state."""


@dataclass(frozen=True)
class Asked:
    """A problem that somebody asked, and the row of its source where there is one.

    The ledger knows it again by hashes, and does not keep what was asked.
    """

    text: str
    row: Mapping[str, Any] | None = None

    @property
    def id(self) -> int:
        return self.key

    @property
    def key(self) -> int:
        return hashed(content_key(self.text))

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

    Args:
        state: Folder of the ledger; None: the user's.
    """
    with AttemptLedger((state or default_state()) / LEDGER) as ledger:
        ledger.tuned_on(family_id(target), problems)
