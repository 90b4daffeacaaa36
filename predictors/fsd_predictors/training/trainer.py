"""One training: lay rounds over texts, tune and fit on most, calibrate on some, judge on the rest.

Knows the order of the work. How each is done is in the module of its name; its settings are checked already.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np

from fsd_collectors.collection.protocols import Advance
from fsd_collectors.replay.cases import REPLAYABLE
from fsd_collectors.store.reading import Traces
from fsd_decoding.errors import UsageError
from fsd_predictors.datasets.rows import Rows, training_rows
from fsd_predictors.datasets.split import Division, of_problems
from fsd_predictors.datasets.texts import Texts
from fsd_predictors.facts import Facts, HiddenInfo, Problems, hidden_of, of_manifest, packed
from fsd_predictors.features.features import FEATURES, ROLES, SHARE, Array
from fsd_predictors.features.share_scale import MOST, NEVER, ShareScale
from fsd_predictors.features.token_kinds import TokenKinds
from fsd_predictors.features.traced import STATE
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.calibration import calibrated
from fsd_predictors.models.head import Head
from fsd_predictors.models.metrics import falls
from fsd_predictors.models.registry import MODELS
from fsd_predictors.models.tuning import tune
from fsd_predictors.predictor import Predictor
from fsd_predictors.training.card import card
from fsd_predictors.training.evaluation import Evaluation, Point, evaluate, judged
from fsd_predictors.training.importances import importance

STEPS = 5
CHECKED = 10_000  # rows, on which no forecast may fall in T

_LOSSLESS = -1.0
_SHARES = (0.25, 0.5, 0.75)  # of the tokens that D decides on, those that it accepts at the T of the figures
_LAID = 4  # times that each text is judged at a T, in other rounds
_SHARES_TRIED = 40  # T at each of those rows


@dataclass(frozen=True)
class _Labelled:
    """What one model is fitted on: (n, features), (n,) bool, and the problem of each row."""

    rows: Array
    accepted: Array
    problem: Array


@dataclass(frozen=True)
class Trainer:
    traces: Traces
    kind: str
    rule: str
    divergences: tuple[str, ...]
    ids: Division
    kinds: TokenKinds
    trials: int
    seed: int

    def train(self, done: Advance) -> tuple[Predictor, dict[str, bytes]]:
        """The predictor, and its card's files."""
        fitting, mending = self._labelled(self.ids.training), self._labelled(self.ids.calibration)
        done(1)
        models, parameters = {}, {}
        for role in ROLES:
            parameters[role] = self._tuned(fitting[role])
            models[role] = self._model(parameters[role], fitting[role], mending[role])
            done(1)
        evaluation = self._evaluated(models["accepting"], models["next"])
        done(1)
        falling = sum(self._falling(models[role], mending[role].rows) for role in ROLES)
        facts = self._facts(
            reached=evaluation.reached, parameters=parameters, falling=falling,
            rows={role: len(labelled.accepted) for role, labelled in fitting.items()},
        )  # fmt: skip
        looks_at = {
            role: importance(models[role], names, mending[role].rows, mending[role].accepted, self.seed)
            for role, names in self._names.items()
        }
        predictor = Predictor(models["accepting"], models["next"], self._scale, facts)
        return predictor, card(facts, self.traces.manifest, evaluation, looks_at)

    @cached_property
    def _scale(self) -> ShareScale:
        """Of the tokens that T decides about: where most are accepted whatever T is, others would crowd its scale."""
        exact, these = REPLAYABLE[self.rule].exact, of_problems(self.ids.training)
        if exact is not None:
            accepted = self.traces.to_pandas([exact], these)[exact].to_numpy()
            if accepted.all():  # so T decides about none
                _check_classes(accepted, self.rule)
            these = [*these, (exact, "==", False)]
        return ShareScale.of_traces(self.traces, self.divergences, these)

    def _labelled(self, problems: tuple[int, ...]) -> dict[str, _Labelled]:
        laid = self._laid(problems)
        both = {
            "accepting": _Labelled(laid.accepting, laid.accepted, laid.problem),
            "next": _Labelled(laid.next, laid.next_accepted, laid.next_problem),
        }
        for labelled in both.values():
            _check_classes(labelled.accepted, self.rule)
        return both

    @cached_property
    def _hidden(self) -> HiddenInfo | None:
        """The draft's state, where models of this kind read it and the traces hold it."""
        return hidden_of(self.traces.manifest) if self.kind == Head.kind else None

    @property
    def _names(self) -> dict[str, tuple[str, ...]]:
        """Of each model's features; the state, whose numbers have no names, counts as one."""
        state = () if self._hidden is None else (STATE,)
        return dict.fromkeys(ROLES, (*FEATURES, *state))

    @property
    def _given(self) -> dict[str, Any]:
        """What each model is told of its columns."""
        return {"share": SHARE} | ({} if self._hidden is None else {"hidden": self._hidden.width})

    def _laid(self, problems: tuple[int, ...], **asked: Any) -> Rows:
        return training_rows(
            self.traces, self.rule, self._scale, self.kinds, problems=problems, seed=self.seed,
            hidden=self._hidden is not None, **asked,
        ).joined()  # fmt: skip

    def _tuned(self, fitting: _Labelled) -> dict[str, Any]:
        return tune(self.kind, fitting.rows, fitting.accepted, fitting.problem, self.trials, self.seed, self._given)

    def _model(self, parameters: dict[str, Any], fitting: _Labelled, mending: _Labelled) -> AcceptanceModel:
        fitted = MODELS[self.kind](**parameters, **self._given).fit(fitting.rows, fitting.accepted)
        return calibrated(fitted, mending.rows, mending.accepted)

    def _evaluated(self, accepting: AcceptanceModel, following: AcceptanceModel) -> Evaluation:
        hidden = self._hidden is not None
        texts = Texts.of(self.traces, self.rule, self.divergences, self.kinds, self.ids.evaluation, hidden)
        return evaluate(judged(accepting, following, {point: self._laid_at(*point) for point in self._points()}, texts))

    def _points(self) -> list[Point]:
        """Of each divergence T < 0, unless that accepts nothing, and T of a few shares."""
        lossless = (_LOSSLESS,) if REPLAYABLE[self.rule].exact else ()
        return [(name, T) for name in self.divergences for T in (*lossless, *self._decisive(name))]

    def _decisive(self, divergence: str) -> list[float]:
        """Between these, T decides about equally many tokens; fewer where many have one D."""
        exact = REPLAYABLE[self.rule].exact
        columns = [divergence, *([exact] if exact else [])]
        table = self.traces.to_pandas(columns, where=of_problems(self.ids.training))
        decided = table.loc[~table[exact], divergence] if exact else table[divergence]
        finite = decided[np.isfinite(decided)].to_numpy(np.float64)
        return np.unique(np.quantile(finite, _SHARES, method="inverted_cdf")).tolist() if len(finite) else []

    def _laid_at(self, divergence: str, threshold: float) -> Rows:
        return self._laid(self.ids.evaluation, thresholds={divergence: [threshold] * _LAID})

    def _falling(self, model: AcceptanceModel, seen: Array) -> int:
        """Of random rows, each value of it seen somewhere, those whose forecast falls where T rises."""
        random = np.random.default_rng(self.seed)
        rows = np.column_stack([random.choice(column, CHECKED) for column in seen.T])
        return falls(model, rows, random.uniform(NEVER, MOST, _SHARES_TRIED))

    def _facts(self, **found: Any) -> Facts:
        return Facts(
            **of_manifest(self.traces.manifest), **found, kind=self.kind, rule=self.rule, seed=self.seed,
            divergences=self.divergences, features=self._names, hidden=self._hidden, versions=_versions(),
            problems=Problems(**{part: len(ids) for part, ids in asdict(self.ids).items()}),
            trained=packed(chain.from_iterable(asdict(self.ids).values())),
        )  # fmt: skip


def _versions() -> dict[str, str]:
    names = ("fsd-calib", "lightgbm", "scikit-learn", "optuna", "torch", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _check_classes(accepted: Array, rule: str) -> None:
    """UsageError where there is nothing to forecast."""
    for all_of_them, which in ((accepted.all(), "accepted"), (not accepted.any(), "rejected")):
        if all_of_them:
            raise UsageError(
                f"under {rule} all {len(accepted)} drafted tokens of these traces are {which} at every T: there is "
                "nothing to predict; decode with a fixed draft length, or collect from another pair"
            )
