"""The acceptance predictor in a calibration: found or trained, held against the models, made policies of.

Knows the order of these. Training, λ and the rule itself are `fsd_predictors`'s (DESIGN section 12).
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fsd_calib.calibration.baseline import TRACED, traces_along_target
from fsd_calib.calibration.session import Session
from fsd_calib.search.space import Space
from fsd_collectors.collection.hidden_states import Width
from fsd_collectors.replay import CostModel, RoundPolicy
from fsd_collectors.store.reading import Traces
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.stopping import StopPolicy
from fsd_decoding.profile.parts import EarlyStopInfo, RatesInfo, SamplingInfo
from fsd_predictors.datasets.split import LEAST
from fsd_predictors.predictor import Predictor
from fsd_predictors.stopping.of_predictor import Stopper
from fsd_predictors.training.api import train

AUTO = "auto"


@dataclass(frozen=True)
class Chosen:
    """A predictor, and where it lies. `given`: not trained here, on the tuning part."""

    predictor: Predictor
    folder: Path
    given: bool

    @property
    def reads(self) -> Width | None:
        """The draft's hidden state, as `collect_traces` takes it; None: it reads none."""
        return None if self.predictor.facts.hidden is None else self.predictor.facts.hidden.setting

    def trained(self) -> frozenset[int]:
        """Ids of the problems that it was trained on, beside the tuning part; warns where they are not recorded."""
        if not self.given:
            return frozenset()
        if self.predictor.facts.trained is None:
            warnings.warn(
                f"the predictor {str(self.folder)!r} does not record the problems that it was trained on; those among "
                "the certification problems certify nothing, and cannot be left out: train again",
                stacklevel=2,
            )
        return self.predictor.facts.trained_ids


@dataclass(frozen=True)
class EarlyStop:
    """What ends drafts early: by divergence in decoding and in replay; and in a profile."""

    policies: Mapping[str, StopPolicy]
    replayed: Mapping[str, RoundPolicy]
    info: EarlyStopInfo


def choose(source: str | os.PathLike[str], session: Session, space: Space, folder: Path | None) -> Chosen:
    """The predictor in a folder, or with "auto" one trained on the tuning part, beside the profile in `folder`.

    Raises:
        UsageError: there is none, or it is of other models, rules, divergences or sampling; too few problems to train.
    """
    if os.fspath(source) == AUTO:
        place = (folder or _in_cache(session, space)) / "predictor"
        chosen = Chosen(_trained(place, session, space), place, given=False)
    else:
        chosen = Chosen(Predictor.load(source), Path(source), given=True)
    _check(chosen.predictor, session, space)
    return chosen


def stopping_early(
    chosen: Chosen, traces: Traces, costs: CostModel, session: Session, space: Space, folder: Path | None
) -> EarlyStop:
    """Policies that weigh these costs. λ is found by replay on the traces; `folder` is where the profile will lie."""
    most, tokenizer = max(space.draft_lengths), session.decoder.tokenizer
    stoppers = {
        divergence: Stopper.fitted(chosen.predictor, divergence, tokenizer, traces, costs, most)
        for divergence in space.divergences
    }
    where = os.path.relpath(chosen.folder.resolve(), folder.resolve()) if folder else str(chosen.folder.resolve())
    info = EarlyStopInfo(
        predictor=where, fingerprint=chosen.predictor.fingerprint, **asdict(costs),
        rates={divergence: RatesInfo(shares=s.rates.shares, tokens_per_second=s.rates.tokens_per_second)
               for divergence, s in stoppers.items()},
    )  # fmt: skip
    decoding = {divergence: stopper.in_loop(session.decoder.draft) for divergence, stopper in stoppers.items()}
    return EarlyStop(decoding, {divergence: stopper.in_replay() for divergence, stopper in stoppers.items()}, info)


def _trained(folder: Path, session: Session, space: Space) -> Predictor:
    """On tuning problems that do not forecast speed, nor are timed where there is one stream.

    One that was trained on the same is taken as it is.
    """
    if len(space.rules) > 1:
        raise UsageError(f"rules are {', '.join(space.rules)}; a predictor is for one rule: give one of them")
    problems = session.tuning.problems[TRACED:]
    if len(problems) < LEAST:
        raise UsageError(
            f"there are {len(session.tuning.problems)} tuning problems; training a predictor takes {TRACED + LEAST} at "
            "least: give more problems, or a predictor's folder"
        )
    session.tuned.mark(problems)
    with traces_along_target(session, space.divergences, problems) as traces:
        if (folder / "predictor.json").exists():
            earlier = Predictor.load(folder)
            made_from = earlier.facts.traces, earlier.facts.rule, earlier.facts.divergences
            if made_from == (traces.manifest.run, space.rules[0], space.divergences):
                return earlier
        return train(
            traces, folder, rule=space.rules[0], divergences=space.divergences, seed=session.decoder.seed,
            tokenizer=session.decoder.tokenizer, progress=session.progress,
        )  # fmt: skip


def _in_cache(session: Session, space: Space) -> Path:
    """Where no profile is written. UsageError: nothing is kept at all."""
    if session.cache is None:
        raise UsageError("predictor is 'auto', and there is neither out nor a cache to keep it in; give one of them")
    return session.cache / "predictors" / hashlib.sha256(f"{session.identity} {space}".encode()).hexdigest()[:16]


def _check(predictor: Predictor, session: Session, space: Space) -> None:
    decoder = session.decoder
    for rule in space.rules:
        for divergence in space.divergences:
            predictor.check(decoder.target, decoder.draft, decoder.tokenizer, rule, divergence)
    if predictor.facts.on != decoder.criterion.on:
        raise UsageError(
            f"the predictor's divergences are on {predictor.facts.on} logits, these on {decoder.criterion.on}; train "
            "one on such traces"
        )
    now = SamplingInfo.model_validate(decoder.sampling, from_attributes=True)
    if now != predictor.facts.sampling:
        raise UsageError(
            f"the predictor was trained on texts sampled with {predictor.facts.sampling}, these have {now}; train one "
            "on such texts"
        )
