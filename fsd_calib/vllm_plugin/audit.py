"""Audits of served texts: some are decoded losslessly once more, and what differs is counted and written.

So a certificate is watched after deployment, on the requests that come. `auditing_scheduler.py` runs them in vLLM.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeAlias

from fsd_calib.vllm_plugin.running_requests import RunningRequest
from fsd_calib.vllm_plugin.telemetry.counters import Counters
from fsd_common.errors import UsageError
from fsd_decoding.text import cut_before

logger = logging.getLogger("vllm.fsd")

OUTCOMES: Final = ("both", "lost", "gained", "neither")
"""Which of two texts are right: both, the lossless one alone (lost), the served one alone (gained), or neither."""
NAMES: Final = ("same", "changed", "sampled", "dropped", "tokens", "lossless_tokens", "first_difference", *OUTCOMES)
"""What is counted: texts that are those of lossless decoding, that differ, or that were sampled, so that they would
differ anyhow; those that were not audited as too many waited; tokens of the served and of the lossless ones; the sum of
the places where those that differ begin to; and with a grader, outcomes."""

Grader: TypeAlias = Callable[[str, str], bool]
"""Says of a prompt and an answer to it whether that is right."""

_TOLD = 100  # texts between two lines in the log


@dataclass(frozen=True)
class Pair:
    """A served text and the lossless one of the same prompt, of token ids up to their ends.

    Args:
        request: its id.
        asked: what ends its texts.
    """

    request: str
    prompt: Sequence[int]
    served: Sequence[int]
    lossless: Sequence[int]
    asked: RunningRequest

    @property
    def first_difference(self) -> int | None:
        """The place of the first token that differs; None: none does, or both were sampled."""
        if not self.asked.greedy or list(self.served) == list(self.lossless):
            return None
        return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(self.served, self.lossless, strict=False)))

    def text(self, tokens: Sequence[int], tokenizer: Any) -> str:
        """Returns a text as clients get it: without what ends it."""
        return cut_before(tokenizer, [token for token in tokens if token not in self.asked.ends], self.asked.stops)


@dataclass(frozen=True)
class Audited:
    """What is said of a pair of texts.

    Attributes:
        request: its id.
        tokens, lossless_tokens: how many each has.
        sampled: whether tokens were drawn, so that two texts differ by chance.
        first_difference: see `Pair`.
        outcome: one of `OUTCOMES`; None: nobody says.
    """

    request: str
    tokens: int
    lossless_tokens: int
    sampled: bool = False
    first_difference: int | None = None
    outcome: str | None = None

    @property
    def kind(self) -> str:
        """Which of `NAMES` it counts as."""
        return "sampled" if self.sampled else "same" if self.first_difference is None else "changed"


class AuditLog:
    """Compares pairs of texts, counts them and writes a line of each.

    Args:
        counters: by `NAMES`.
        file: to which a JSON line of each is added; None: nothing is written.
        grader: says which texts are right; None: nobody does.
    """

    def __init__(self, counters: Counters, file: Path | None, grader: Grader | None = None) -> None:
        self._counters, self._file, self._grader = counters, file, grader
        self._told: Counter[str] = Counter()

    def add(self, pair: Pair, tokenizer: Any) -> None:
        """Compares two texts. tokenizer: vLLM's."""
        audited = Audited(
            pair.request, len(pair.served), len(pair.lossless), not pair.asked.greedy, pair.first_difference,
            self._outcome(pair, tokenizer),
        )  # fmt: skip
        counted = {audited.kind: 1, "tokens": audited.tokens, "lossless_tokens": audited.lossless_tokens}
        counted |= {"first_difference": audited.first_difference or 0}
        counted |= {} if audited.outcome is None else {audited.outcome: 1}
        for name, by in counted.items():
            self._counters.increase(name, by)
        self._write(audited)
        self._told.update([audited.kind, "texts", *([] if audited.outcome is None else [audited.outcome])])
        if self._told["texts"] % _TOLD == 0:
            self._tell()

    def drop(self) -> None:
        """Notes a text that is not audited, as too many wait."""
        self._counters.increase("dropped", 1)

    def _outcome(self, pair: Pair, tokenizer: Any) -> str | None:
        """Asks the grader, and gives it up, with a warning, where it fails: serving goes on."""
        if self._grader is None:
            return None
        asked = str(tokenizer.decode(pair.prompt))
        try:
            right, exact = (bool(self._grader(asked, pair.text(t, tokenizer))) for t in (pair.served, pair.lossless))
        except Exception as error:  # of whatever kind, as it is somebody's code
            logger.warning("fsd: texts are no longer graded, as the grader failed: %s: %s", type(error).__name__, error)
            self._grader = None
            return None
        if right == exact:
            return "both" if right else "neither"
        return "gained" if right else "lost"

    def _write(self, audited: Audited) -> None:
        """Adds a line to the file, and gives it up, with a warning, where that cannot be: serving goes on."""
        if self._file is None:
            return
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(audited)) + "\n")
        except OSError as error:
            logger.warning("fsd: audits are no longer written to %s: %s", self._file, error)
            self._file = None

    def _tell(self) -> None:
        found = self._told
        compared = found["same"] + found["changed"]
        graded = f"; {found['lost']} right answers were lost and {found['gained']} gained" if self._grader else ""
        logger.info(
            "fsd: of %d audited texts %d are greedy, and %d of these differ from what lossless decoding writes%s",
            found["texts"], compared, found["changed"], graded,
        )  # fmt: skip


def is_audited(request: str, share: float) -> bool:
    """Whether a request is among the share that is audited: by its id, so that each process says the same."""
    digest = hashlib.blake2b(request.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2.0**64


def grader_named(name: str) -> Grader:
    """Returns a function by its name, `module:function`. Raises UsageError: there is none."""
    module, _, function = name.partition(":")
    try:
        found: Any = getattr(import_module(module), function)
    except (ImportError, ValueError, AttributeError) as error:
        raise UsageError(
            f"grader is {name!r:.60}, which cannot be imported: {error}; give module:function, which takes a prompt "
            "and an answer"
        ) from error
    if not callable(found):
        raise UsageError(f"grader is {name!r:.60}, which cannot be called; give module:function")
    grader: Grader = found
    return grader
