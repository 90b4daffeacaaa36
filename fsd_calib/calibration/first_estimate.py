"""The first estimate of a calibration's time: from some rounds of the first tuning problems, before anything else.

It takes less than half a minute, whatever the models. What it decodes to the end is kept, as any decoding is; nothing
else follows from it but what is shown. Rounds take as long as they do beside what else the machine runs in this time,
which may end, or become more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from scipy.stats import chi2

from fsd_calib.calibration.baseline import TRACED
from fsd_calib.calibration.plan import FirstEstimate, Paces, PlannedStep, expected_share, stages_of
from fsd_calib.calibration.prepare import PILOT, USUAL_LENGTH, WATCHED, Request, check_best_case, efforts, test_of
from fsd_calib.calibration.session import Session
from fsd_calib.calibration.timing import Timer
from fsd_calib.engines.own import OwnEngine, seconds_of_costs
from fsd_calib.measuring.interleaved import MachineLoad, machine_load
from fsd_calib.measuring.look import Look
from fsd_collectors.store.reading import Traces
from fsd_common.formatting import clock, duration, percent

_SECONDS, _ALONE = 20.0, 8.0  # for all rounds, and for those with one row
_TRIED = 3  # of these, from which the number of rows follows that there is time for
_FOLLOW = 10  # rounds for which there should be time then
_INTERVAL = (0.1, 0.9)  # quantiles of the mean length of a text


Lengths = tuple[float, float, float]
"""Mean tokens of a text: at the low end, as expected, and at the high end."""


@dataclass(frozen=True)
class Seen:
    """What the looks saw of lossless rounds at L = USUAL_LENGTH.

    Attributes:
        fixed, row: seconds of a round are fixed + rows * row.
        drafts: share of a round's seconds in which the draft ran.
    """

    fixed: float
    row: float
    prefill: float
    drafts: float
    tokens_per_round: float
    lengths: Lengths

    def paces(self, tokens: float, rows: int, processes: int = 1) -> Paces:
        """Returns seconds of decodings with texts of so many tokens, so many rows at once."""
        each = (self.fixed / rows + self.row) / processes
        prefill, fuzzy = self.prefill / processes, (self.tokens_per_round + USUAL_LENGTH + 1) / 2
        return Paces(
            prefill + tokens * (1 - self.drafts) * each, prefill + tokens / self.tokens_per_round * each,
            prefill + tokens / fuzzy * each,
        )  # fmt: skip


@dataclass(frozen=True)
class FirstLook:
    """What was seen of a calibration that is to come, and the estimates that follow."""

    session: Session
    request: Request
    seen: Seen
    took: float
    load: MachineLoad | None  # of the machine meanwhile; None: not known

    def estimate(self) -> FirstEstimate:
        """Tells and returns what is expected before anything else is done."""
        tuning = len(self.session.tuning.problems)
        traced = min(TRACED, tuning) * self._paces(self.seen.lengths[1]).target
        estimate = self._estimate(self.seen.lengths, traced)
        free = (USUAL_LENGTH + 1) / self.seen.tokens_per_round
        self.session.progress.note(
            f"first estimate, after {clock(self.took)} of decoding: {in_words(estimate, self.load)}, "
            f"{percent(estimate.share)} of it {estimate.longest}; before it {duration(estimate.preparation)} until the "
            f"plan. Lossless rounds at L = {USUAL_LENGTH} make {self.seen.tokens_per_round:.2f} tokens, "
            f"so at this L nothing gains more than {free:.2f}x; at a larger one it may"
        )
        return estimate

    def refine(self, texts: Traces) -> None:
        """Tells what is expected once the target's texts are known."""
        tokens = [len(row) for row in texts.completions.to_table(columns=["tokens"])["tokens"].to_pylist()]
        estimate = self._estimate(_ended_lengths(sum(tokens), len(tokens), self.session.task.max_new_tokens), 0.0)
        self.session.progress.note(
            f"estimate with the lengths of {len(tokens)} texts: {in_words(estimate, self.load)}; before it "
            f"{duration(estimate.preparation)} until the plan"
        )

    def _estimate(self, lengths: Lengths, traced: float) -> FirstEstimate:
        """The estimate for texts of these lengths, where traces take so many seconds."""
        low, middle, high = map(self._steps, lengths)
        least, usual, most = (sum(step.seconds for step in steps) for steps in (low, middle, high))
        slower = 1.0 if self.load is None else self.load.slower
        longest, preparation = max(middle, key=lambda step: step.seconds), traced + self._pilot(lengths[1])
        stages = [] if self.request.plan_only else stages_of(middle)
        self.request.outlook.prepare(preparation, stages, self.session.decode.count)
        return FirstEstimate(
            least / slower, usual, most * slower, preparation, longest.name, longest.seconds / usual,
            self.seen.tokens_per_round, USUAL_LENGTH, self.took,
        )  # fmt: skip

    def _steps(self, length: float) -> tuple[PlannedStep, ...]:
        """The steps of the run, with texts of so many tokens."""
        session, goal = self.session, self.request.goal
        share = expected_share(*test_of(session, goal, session.holdout.next_attempt))
        own, served = self._paces(length, session.processes), self.seen.paces(length, goal.serve_batch)
        planned = partial(efforts, session, own, goal, self.request.fixed, share)
        timer = Timer(session, goal, self.request.config.timing, self.request.sources)
        return planned(*timer.within(served, sum(step.seconds for step in planned())).effort(served))

    def _pilot(self, length: float) -> float:
        """Seconds of what follows traces until the plan: the pilot, the pace of decoding and the costs of a round."""
        paces, serve, rows = self._paces(length), self.request.goal.serve_batch, self.session.batch_size
        piloted = min(PILOT, len(self.session.tuning.problems)) * (paces.lossless + paces.fuzzy)
        watched = 2 * (rows * self.seen.prefill + WATCHED)
        return piloted + watched + seconds_of_costs(self.seen.fixed + serve * self.seen.row)

    def _paces(self, length: float, processes: int = 1) -> Paces:
        return self.seen.paces(length, self.session.batch_size, processes)


def first_look(session: Session, request: Request) -> FirstLook | None:
    """Decodes some rounds of the first tuning problems.

    None: the engine's rounds cannot be watched, or the pilot's texts are there already, and the plan soon is.

    Raises:
        UsageError: there are too few problems for the goal, whatever the outcomes.
    """
    check_best_case(request.goal, session)
    began = time.monotonic()
    with session.progress.step("first texts", 0):
        seen = _look(session, request)
    return None if seen is None else FirstLook(session, request, seen, time.monotonic() - began, machine_load())


def in_words(estimate: FirstEstimate, load: MachineLoad | None) -> str:
    """Returns the time in words, with its interval and what that covers."""
    between = f"{duration(estimate.low)} to {duration(estimate.high)} by the length of texts"
    others = ", if nothing else begins to run here"
    if load is not None and load.busy:
        others = f" and by whether what else runs here ends or grows, {load}"
    return f"about {duration(estimate.seconds)} ({between}{others})"


def _look(session: Session, request: Request) -> Seen | None:
    """Watches rounds with one row, then with as many as there is time for."""
    engine = session.engine
    setting = session.setting(engine.lossless, USUAL_LENGTH, request.space.drafts[0])
    if not (isinstance(engine, OwnEngine) and engine.watched):
        return None
    problems, began = session.tuning.problems[:PILOT], time.perf_counter()
    for number, problem in enumerate(problems, 1):  # the first whose text is not there from an earlier run
        one = Look(engine.decoder.device, began + _ALONE, _TRIED)
        session.decode.watched(setting, [problem], one)
        if one.rows:
            others = problems[number:]
            break
    else:
        return None
    left, ended, looks = began + _SECONDS - one.last, 0, [one]
    rows = min(int(left / (one.prefill + _FOLLOW * one.round)), session.batch_size, len(others))
    if rows > 1:
        several = Look(engine.decoder.device, began + _SECONDS)
        ended = session.decode.watched(setting, others[:rows], several)
        looks += [several] if several.rows else []
    return _seen(looks, ended, session.task.max_new_tokens)


def _seen(looks: Sequence[Look], ended: int, most: int) -> Seen:
    """What looks with one row, and maybe with several, saw: texts, of which `ended` ended."""
    one, last = looks[0], looks[-1]
    row = one.round / 2 if last.rows == 1 else max(last.round - one.round, 0.0) / (last.rows - 1)  # 1/2: nobody knows
    per_row = max(look.tokens / look.rows for look in looks)
    lengths = _ended_lengths(last.tokens, ended, most) if ended else _cut_lengths(min(per_row, most), most)
    return Seen(
        max(last.round - last.rows * row, 0.0), row, last.prefill,
        sum(last.drafting) / sum(last.seconds) if last.seconds else 0.0,
        sum(look.tokens for look in looks) / sum(look.row_rounds for look in looks), lengths,
    )  # fmt: skip


def _ended_lengths(tokens: int, ended: int, most: int) -> Lengths:
    """The mean of texts of which some ended, in so many tokens of all; at most `most`.

    As of an exponential law (Epstein and Sobel 1953), which varies more than lengths of texts do.
    """
    low, high = (2 * tokens / chi2.ppf(at, 2 * ended) for at in reversed(_INTERVAL))
    return min(low, most), min(tokens / ended, most), min(high, most)


def _cut_lengths(tokens: float, most: int) -> Lengths:
    """The mean of texts that all went on after so many tokens: as likely within any factor, up to `most`."""
    low, middle, high = (tokens * (most / tokens) ** at for at in (_INTERVAL[0], 0.5, _INTERVAL[1]))
    return low, middle, high
