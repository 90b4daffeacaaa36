"""Audits of served texts: some are decoded losslessly once more, and what differs is counted and written.

So a certificate is watched after deployment, on the requests that come. `auditing_scheduler.py` runs them in vLLM.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeAlias

from fsd_calib.vllm_plugin.telemetry.counters import Counters
from fsd_common.errors import UsageError

logger = logging.getLogger("vllm.fsd")

OUTCOMES: Final = ("both", "lost", "gained", "neither")
"""Which of two texts are right: both, the lossless one alone (lost), the served one alone (gained), or neither."""
NAMES: Final = ("texts", "changed", "tokens", "lossless_tokens", "first_difference", *OUTCOMES)
"""What is counted: texts that were audited; those that differ; tokens of the served and of the lossless ones; the sum
of the places where those that differ begin to; and with a grader, outcomes."""

Grader: TypeAlias = Callable[[str, str], bool]
"""Says of a prompt and an answer to it whether that is right."""

_TOLD = 100  # texts between two lines in the log


@dataclass(frozen=True)
class Audited:
    """A served text beside the lossless one of the same prompt.

    Attributes:
        request: its id.
        tokens, lossless_tokens: how many each has.
        first_difference: the place of the first token that differs; None: none does.
        right, lossless_right: what the grader says; None: there is none.
    """

    request: str
    tokens: int
    lossless_tokens: int
    first_difference: int | None
    right: bool | None = None
    lossless_right: bool | None = None

    @classmethod
    def of(
        cls, request: str, prompt: Sequence[int], served: Sequence[int], lossless: Sequence[int], grader: Grader | None,
        decode: Callable[[Sequence[int]], str],
    ) -> Audited:  # fmt: skip
        """Compares two texts.

        Args:
            prompt, served, lossless: token ids.
            decode: turns token ids into text.
        """
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(served, lossless, strict=False)))
        first = None if list(served) == list(lossless) else same
        found = cls(request, len(served), len(lossless), first)
        if grader is None:
            return found
        asked = decode(prompt)
        right, lossless_right = (bool(grader(asked, decode(text))) for text in (served, lossless))
        return cls(request, len(served), len(lossless), first, right, lossless_right)

    @property
    def outcome(self) -> str | None:
        """One of `OUTCOMES`; None: nobody says."""
        if self.right is None or self.lossless_right is None:
            return None
        if self.right == self.lossless_right:
            return "both" if self.right else "neither"
        return "gained" if self.right else "lost"


class AuditLog:
    """Counts audited texts and writes a line of each.

    Args:
        counters: by `NAMES`.
        file: to which a JSON line of each is added; None: nothing is written.
    """

    def __init__(self, counters: Counters, file: Path | None) -> None:
        self._counters, self._file = counters, file
        self._texts = self._changed = 0
        self._outcomes: dict[str, int] = {}

    def add(self, audited: Audited) -> None:
        counted = {"texts": 1.0, "tokens": float(audited.tokens), "lossless_tokens": float(audited.lossless_tokens)}
        if audited.first_difference is not None:
            counted |= {"changed": 1.0, "first_difference": float(audited.first_difference)}
            self._changed += 1
        if audited.outcome is not None:
            counted[audited.outcome] = 1.0
            self._outcomes[audited.outcome] = self._outcomes.get(audited.outcome, 0) + 1
        for name, by in counted.items():
            self._counters.increase(name, by)
        self._write(audited)
        self._texts += 1
        if self._texts % _TOLD == 0:
            self._tell()

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
        lost, gained = (self._outcomes.get(name, 0) for name in ("lost", "gained"))
        graded = f"; {lost} right answers were lost and {gained} gained" if self._outcomes else ""
        logger.info(
            "fsd: of %d audited texts %d differ from those that lossless decoding writes%s",
            self._texts, self._changed, graded,
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
