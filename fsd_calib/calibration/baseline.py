"""Baseline of a calibration, measured before any threshold is tried: target alone, lossless rule, target's traces, and
the numerical floor that follows, below which no goal is looked for.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fsd_calib.calibration.session import Session, TextSession
from fsd_calib.certification.bounds import DELTA, Floor
from fsd_calib.engines.base import WantedTraces
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.options.goal import Goal
from fsd_calib.tasks.base import Problem
from fsd_collectors.collection.measures import Width
from fsd_collectors.manifest import Manifest
from fsd_collectors.store.reading import Traces, load_traces
from fsd_collectors.store.verifying import verify
from fsd_common.argument_checks import named
from fsd_common.errors import UsageError
from fsd_common.files import make_private_folder, private_lock, set_aside
from fsd_common.formatting import at_least, at_most, confidence
from fsd_common.progress.base import Progress, Waiting
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.parts import NumericalChurn
from fsd_decoding.profile.setting import Setting

_ROUNDING = {"batch_size", "portion"}  # facts that move the numbers by rounding alone
COMPARED = 256  # tuning problems on which target and lossless rule are compared before the search
COUNTED = 300  # problems of a part on which the tokens per round of `sd` are counted
TRACED = 128  # problems: enough for tokens per round to within about one per cent


@dataclass(frozen=True)
class Baseline:
    """Measurements of the target alone and of the lossless rule on the same tuning problems.

    Attributes:
        exact_texts: See `Engine.exact_texts`.
    """

    alone: Measurement
    lossless: Measurement
    exact_texts: bool = True

    @property
    def numerical_churn(self) -> NumericalChurn | None:
        """How often the lossless rule's text or outcome differs from the target's: the floor of all churn.

        None: the rule has noise of its own, from which rounding cannot be told.
        """
        if not self.exact_texts:
            return None
        pairs = [(a[0], b[0]) for a, b in zip(self.alone.decodings, self.lossless.decodings, strict=True)]
        return NumericalChurn(
            problems=len(pairs),
            texts_changed=sum(a.text != b.text for a, b in pairs),
            outcomes_flipped=sum(a.correct != b.correct for a, b in pairs),
        )


def measure_baseline(session: TextSession, lossless: Setting, first: int) -> Baseline:
    """Measures target and lossless rule on the first tuning problems.

    Args:
        first: how many problems.

    Raises:
        UsageError: the target solves none of them.
    """
    alone = session.tuning.measure(session.setting("target"), first)
    if not alone.correct.any():
        raise UsageError(
            f"the target solves none of {alone.problems} {session.task.name} problems, so retention is "
            "undefined; look at a prompt (fsd-calibrate --show-prompt), or use another target"
        )
    return Baseline(alone, session.tuning.measure(lossless, first), session.engine.exact_texts)


@contextmanager
def traces_along_target(
    session: Session, scores: Sequence[str], problems: Sequence[Problem], hidden: Width | None = None
) -> Iterator[Traces]:
    """Yields traces of these tuning problems along the target, kept in the cache for later runs.

    Waits for another process that collects the same. Traces that are there are used, and interrupted ones continued,
    at the batch size that they were begun with: it may have been chosen by the memory that was free, and traces at
    another batch size, equal but for rounding, would make the forecasts, and so the search, those of another run.

    Args:
        hidden: width of the draft's hidden state, as `collect_traces` takes it; None: without it.
    """
    task = replace(session.task, problems=tuple(problems))
    wanted = WantedTraces(task, scores, session.batch_size, hidden)
    with _trace_folder(session, session.engine.manifest(wanted)) as folder:
        traces = begun = _begun(folder, session.batch_size)
        if traces is None or not traces.complete:
            size = session.batch_size if begun is None else begun.manifest.batch_size
            traces = session.engine.collect(
                replace(wanted, batch_size=size), folder, session.progress, session.workers
            )  # fmt: skip
        _cache_texts(traces, session)
        yield traces


def _begun(folder: Path, fitting: int) -> Traces | None:
    """Returns the traces in a folder; None: there are none, or they were interrupted and are removed, as they were
    begun with more problems at once than are `fitting` now."""
    if not any(folder.iterdir()):
        return None
    traces = load_traces(folder)
    if traces.complete or traces.manifest.batch_size <= fitting:
        return traces
    shutil.rmtree(folder)
    make_private_folder(folder)
    return None


@contextmanager
def _trace_folder(session: Session, asked: Manifest) -> Iterator[Path]:
    """Yields a folder for these traces alone, locked; temporary where there is no cache.

    Its name is made of all that the traces depend on, beyond rounding: what differs from them has another folder.
    """
    if session.cache is None:
        with TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    facts = {name: fact for name, fact in asked.facts.items() if name not in _ROUNDING}
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = session.cache / "traces" / name
    make_private_folder(folder.parent)
    waiting = Waiting(session.progress, "collects the same traces")
    with waiting.holding(private_lock(folder.with_suffix(".lock"))):
        _set_aside_if_damaged(folder)
        make_private_folder(folder)
        yield folder


def _set_aside_if_damaged(folder: Path) -> None:
    """Renames a folder of damaged traces: collecting them again costs little compared with a wrong calibration."""
    if not folder.exists():
        return
    try:
        faults = verify(folder)
    except UsageError as error:  # there is no manifest to verify them by
        faults = [str(error)] if any(folder.iterdir()) else []
    if faults:
        warnings.warn(
            f"traces {str(folder)!r} are damaged ({faults[0]}); they are renamed to {set_aside(folder).name!r} and "
            "collected again",
            stacklevel=2,
        )


def _cache_texts(traces: Traces, session: Session) -> None:
    """Enters the target's texts into the cache of decodings, so that they need not be decoded again.

    Not where the calibration's kernels are compiled: those that traces are collected with are not.
    """
    if session.engine.compile is True:
        return
    problems, alone = {p.id: p for p in session.tuning.problems}, session.setting("target")
    columns = ["problem", "text", "tokens", "finish_reason", "rounds"]
    for row in traces.completions.to_table(columns=columns).to_pylist():
        result = Result(
            row["text"], row["tokens"], row["rounds"], drafted=0, accepted=0, bonus=0, interval=(-math.inf, math.inf),
            finish_reason=row["finish_reason"],
        )  # fmt: skip
        session.decode.remember(alone, problems[row["problem"]], result)


def note_numerical_churn(churn: NumericalChurn | None, progress: Progress) -> None:
    """Notes how often rounding alone flips an outcome.

    Args:
        churn: None: it cannot be told from noise.
    """
    if churn is None:
        progress.note(
            "how many outcomes rounding alone flips is not known: sampled lossless texts have noise of their own in "
            "this engine"
        )
        return
    progress.note(
        f"rounding alone (the lossless rule compared with the target) flipped {churn.outcomes_flipped} of "
        f"{churn.problems} outcomes, so it flips {_floor(churn).bound_in_words}; it changed {churn.texts_changed} texts"
    )


def check_numerical_floor(goal: Goal, accuracy: float, churn: NumericalChurn | None, progress: Progress) -> None:
    """Checks that the goal is not finer than the floor, and notes where it may be.

    Args:
        accuracy: of the target, on the problems that `churn` was counted on.
        churn: None: it cannot be told from noise, and the goal is not checked.

    Raises:
        UsageError: a certificate is requested, and the losses it allows are below even the least that the floor may be.
    """
    if churn is None:
        return
    floor, room = _floor(churn), _room(goal, accuracy)
    if room is None or floor.share <= room:
        return
    if floor.least <= room or goal.explore:
        progress.note(
            f"{_room_in_words(goal, room)}, and rounding alone seems to flip more: {at_most(floor.share)} here"
        )
        return
    raise UsageError(
        f"{_room_in_words(goal, room)}, and rounding alone flips more than that: {churn.outcomes_flipped} of "
        f"{churn.problems}, at least {at_least(floor.least)} ({confidence(DELTA)} confidence); use "
        f"{named('dtype')} float32 if the models run in another one, or a lower {named('min_acc')}, or "
        f"{named('explore')}, which claims nothing"
    )


def _floor(churn: NumericalChurn) -> Floor:
    return Floor.of(churn.outcomes_flipped, churn.problems)


def _room(goal: Goal, accuracy: float) -> float | None:
    """How far a retention lets outcomes differ from the target's, as a share of problems; None: no retention is set.

    An absolute accuracy is compared with no other decoding: flips in both directions cancel in it.
    """
    return None if goal.min_acc is None or goal.acc == "absolute" else abs(1 - goal.min_acc) * accuracy


def _room_in_words(goal: Goal, room: float) -> str:
    assert goal.min_acc is not None
    if goal.min_acc > 1:
        return f"{named('min_acc')} {goal.min_acc:g} requires a gain of {at_most(room)} of the outcomes"
    return f"{named('min_acc')} {goal.min_acc:g} leaves room for {at_most(room)} of the outcomes to be lost"
