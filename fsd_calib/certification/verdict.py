"""The text of a verdict in the ledger, with the grades it rests on, so that another process can take it over.

Two processes may decode a few problems differently, in the last bits of bf16 say, and each would come to a verdict of
its own. The first one recorded stands, and certificates of the other process rest on its grades.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from fsd_calib.certification.certificate import Evidence
from fsd_calib.certification.outcomes import Gradings, Paired
from fsd_common.errors import UsageError


def verdict_text(kind: str, result: Any, evidence: Sequence[Evidence]) -> str:
    """Returns the verdict as text.

    Args:
        kind: What was decided, such as "passed"; another kind is another question.
        result: JSON of the result.
        evidence: Of every configuration tested. Counts are for people; bounds follow from the grades, up to rounding
            of another machine.
    """
    grades = [[_encode(e.paired.target), _encode(e.paired.fuzzy), e.paired.seeds] for e in evidence]
    return json.dumps({kind: result, "shown": counts_of(evidence), "grades": grades})


def counts_of(evidence: Sequence[Evidence]) -> list[list[int]]:
    """Returns the counts of outcomes of every configuration."""
    return [list(astuple(e.outcomes)) for e in evidence]


def standing_grades(own: str, standing: str, kind: str, number: int) -> list[Paired] | None:
    """Returns the grades that the standing verdict rests on; None where they are this process's own.

    Args:
        own: This process's verdict.
        number: Of the attempt.

    Raises:
        UsageError: The verdicts differ, and the standing one is of another kind.
    """
    ours, theirs = json.loads(own), json.loads(standing)
    if ours == theirs:
        return None
    if kind not in theirs:
        raise UsageError(
            f"attempt {number} was decided before as {standing!r:.200}, and now as {own!r:.200}; the first verdict "
            "stands, and answers another question: change the sequence or the claim for a new attempt"
        )
    counts = [sum(shown) // seeds for shown, (*_, seeds) in zip(theirs["shown"], theirs["grades"], strict=True)]
    return [
        Paired(_decode(target, problems, seeds), _decode(fuzzy, problems, seeds))
        for (target, fuzzy, seeds), problems in zip(theirs["grades"], counts, strict=True)
    ]


def _encode(grades: Gradings) -> str:
    return base64.b64encode(np.packbits(grades).tobytes()).decode()


def _decode(text: str, problems: int, seeds: int) -> Gradings:
    bits = np.frombuffer(base64.b64decode(text), np.uint8)
    return np.unpackbits(bits, count=problems * seeds).astype(bool).reshape(problems, seeds)
