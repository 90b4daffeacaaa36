"""The acceptance predictor of a calibration: loads or trains it, checks it, and builds early-stop policies from it.

Training, λ and the stopping rule itself are in `fsd_predictors`; see docs/predictor.md.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fsd_calib.calibration.baseline import TRACED, traces_along_target
from fsd_calib.calibration.session import Session
from fsd_calib.options.common import AUTO
from fsd_calib.search.space import Space
from fsd_calib.tasks.base import Problem
from fsd_collectors.collection.measures import Width
from fsd_collectors.replay import CostModel, RoundPolicy
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.parts import EarlyStopInfo, RatesInfo, SamplingInfo
from fsd_predictors.predictor import Predictor
from fsd_predictors.stopping.of_predictor import Stopper
from fsd_predictors.training.api import train
from fsd_predictors.training.rows import LEAST

NAME = "predictor"
"""The folder of a trained predictor, in that of a profile."""


@dataclass(frozen=True)
class Chosen:
    """A predictor and its folder. `supplied`: by the user, not trained here on the tuning part."""

    predictor: Predictor
    folder: Path
    supplied: bool

    @property
    def reads(self) -> Width | None:
        """Width of the draft's hidden state that it reads, as `collect_traces` takes it; None: it reads none."""
        return None if self.predictor.facts.hidden is None else self.predictor.facts.hidden.setting

    def trained(self) -> frozenset[int]:
        """Returns ids of problems that it was trained on and that may be outside the tuning part."""
        return self.predictor.facts.trained_ids if self.supplied else frozenset()


@dataclass(frozen=True)
class EarlyStop:
    """Early-stop policies by score, in decoding and in replay, and their entry in the profile."""

    policies: Mapping[str, StopPolicy]
    replayed: Mapping[str, RoundPolicy]
    info: EarlyStopInfo


def choose(
    source: str | os.PathLike[str], session: Session, space: Space, folder: Path | None, *, train: bool = True
) -> Chosen | None:
    """Returns the predictor in the folder `source`, or with "auto" one trained on the tuning part.

    Args:
        folder: of the profile; a trained predictor is saved there. None: it is saved in the cache.
        train: whether one may be trained. Where not, "auto" is the one that an earlier run of the same has trained.

    Returns:
        None: a run will train it.

    Raises:
        UsageError: there is no predictor, it is of other models, rules, scores or sampling, or there are too few
            problems to train one.
    """
    if os.fspath(source) != AUTO:
        chosen = Chosen(Predictor.load(source), Path(source), supplied=True)
    else:
        problems = _training_problems(session, space)
        place = (folder or _cache_folder(session, space)) / NAME
        if not train and not _is_trained(place):
            return None
        predictor = _train(place, problems, session, space) if train else Predictor.load(place)
        chosen = Chosen(predictor, place, supplied=False)
    _check(chosen.predictor, session, space)
    return chosen


def stopping_early(
    chosen: Chosen, traces: Traces, costs: CostModel, session: Session, space: Space, folder: Path | None
) -> EarlyStop:
    """Returns policies that weigh these costs.

    Args:
        traces: of tuning problems, on which λ is fitted by replay.
        folder: of the profile, which names the predictor relative to it.
    """
    most, tokenizer = max(space.draft_lengths), session.decoder.tokenizer
    stoppers = {
        score: Stopper.fitted(chosen.predictor, score, tokenizer, traces, costs, most) for score in space.scores
    }
    where = os.path.relpath(chosen.folder.resolve(), folder.resolve()) if folder else str(chosen.folder.resolve())
    info = EarlyStopInfo(
        predictor=where, fingerprint=chosen.predictor.fingerprint, **asdict(costs),
        rates={score: RatesInfo(shares=s.rates.shares, tokens_per_second=s.rates.tokens_per_second)
               for score, s in stoppers.items()},
    )  # fmt: skip
    decoding = {score: stopper.in_loop(session.decoder.draft) for score, stopper in stoppers.items()}
    return EarlyStop(decoding, {score: stopper.in_replay() for score, stopper in stoppers.items()}, info)


def _training_problems(session: Session, space: Space) -> Sequence[Problem]:
    """The tuning problems that forecasts of speed are not made from. UsageError: they train no predictor."""
    if len(space.rules) > 1:
        raise UsageError(f"rules are {', '.join(space.rules)}; a predictor is trained for one rule: give one of them")
    problems = session.tuning.problems[TRACED:]
    if len(problems) < LEAST:
        raise UsageError(
            f"there are {len(session.tuning.problems)} tuning problems; training a predictor takes at least "
            f"{TRACED + LEAST}: give more problems, or a predictor's folder"
        )
    return problems


def _train(folder: Path, problems: Sequence[Problem], session: Session, space: Space) -> Predictor:
    """Trains on these tuning problems; reuses a predictor trained on the same traces."""
    session.tuned.mark(problems)
    with traces_along_target(session, space.scores, problems) as traces:
        if _is_trained(folder):
            earlier = Predictor.load(folder)
            trained_on = earlier.facts.traces, earlier.facts.rule, earlier.facts.scores
            if trained_on == (traces.manifest.run, space.rules[0], space.scores):
                return earlier
        return train(
            traces, folder, rule=space.rules[0], scores=space.scores, seed=session.decoder.seed,
            tokenizer=session.decoder.tokenizer, progress=session.progress,
        )  # fmt: skip


def _is_trained(folder: Path) -> bool:
    return (folder / "predictor.json").exists()


def _cache_folder(session: Session, space: Space) -> Path:
    """The folder for calibrations that write no profile. Raises UsageError where there is no cache either."""
    if session.cache is None:
        raise UsageError(
            "predictor is 'auto', and there is neither an output folder nor a cache to save it in; give one of them"
        )
    return session.cache / "predictors" / hashlib.sha256(f"{session.identity} {space}".encode()).hexdigest()[:16]


def _check(predictor: Predictor, session: Session, space: Space) -> None:
    decoder = session.decoder
    for rule in space.rules:
        for score in space.scores:
            predictor.check(decoder.target, decoder.draft, decoder.tokenizer, rule, score)
    if predictor.facts.on != decoder.criterion.on:
        raise UsageError(
            f"the predictor was trained with scores on {predictor.facts.on} logits, and this calibration has them "
            f"on {decoder.criterion.on} logits; train one on such traces"
        )
    sampling = SamplingInfo.model_validate(decoder.sampling, from_attributes=True)
    if sampling != predictor.facts.sampling:
        raise UsageError(
            f"the predictor was trained on texts sampled with {predictor.facts.sampling}, and this calibration samples "
            f"with {sampling}; train one on such texts"
        )
