"""`train`: trains a predictor on traces and saves it, with a card that reports its quality.

`Trainer` is the pipeline: it makes training rows, tunes and fits the models, calibrates them, evaluates the predictor.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fsd_collectors.manifest import Manifest
from fsd_collectors.replay.cases import REPLAYABLE, check_along_target, check_score, replayable
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_common.packed_ids import pack_ids
from fsd_common.progress.base import Advance, Progress
from fsd_decoding.loading import load_tokenizer
from fsd_decoding.model_options import ModelOptions
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.rules import rule_named
from fsd_decoding.scores import score_named
from fsd_predictors import files
from fsd_predictors.facts import (
    HiddenInfo,
    PredictorFacts,
    Problems,
    check_version,
    facts_of_manifest,
    hidden_of,
)
from fsd_predictors.features import FEATURES, ROLES, SHARE, STATE, Array, Forecast, TokenKinds
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.mlp import MLP
from fsd_predictors.models.registry import MODELS, Calibrated
from fsd_predictors.predictor import Predictor
from fsd_predictors.share_scale import MOST, NEVER, ShareScale
from fsd_predictors.training.card import card, importance
from fsd_predictors.training.evaluation import Evaluation, Point, Texts, evaluate, falls, make_forecasts
from fsd_predictors.training.rows import ProblemSplit, Rows, problem_filter, split_problems, training_rows
from fsd_predictors.training.tuning import tune


def train(
    traces: Traces, out: str | os.PathLike[str], kind: str = "boosted", rule: str = "fsd-coupled",
    scores: Sequence[str] = ("js",), *, trials: int = 8, seed: int = 0, limit: int | None = None,
    tokenizer: Any = None, progress: Progress | None = None,
) -> Predictor:  # fmt: skip
    """Trains a predictor on the traces' tuning problems and writes it, with a card, into the folder `out`.

    Args:
        traces: traces collected along the target.
        out: folder to write; an earlier predictor there is replaced.
        kind: kind of its two models, a key of `models.registry.MODELS`.
        rule: acceptance rule the predictor will be used with.
        scores: scores it will be used with; it serves every threshold on each of them.
        trials: Optuna trials for each of the two models; 0 takes the default settings.
        seed: seed of the training rows, of the tuning and of the models.
        limit: maximum number of problems to use.
        tokenizer: the target's tokenizer; by default loaded from the target that the traces name.
        progress: receives the progress of the training steps.

    Raises:
        UsageError: the traces are on-policy, were made with another version of the scores or another tokenizer,
            hold too few problems, or only drafted tokens that are all accepted or all rejected; the kind, rule or
            score is unknown; the folder cannot be written or holds other files.
    """
    names = tuple(dict.fromkeys(scores))
    _check(traces, kind, rule, names)
    files.check_place(Path(out))
    ids = split_problems(traces, limit)
    kinds = TokenKinds.of(_tokenizer(traces.manifest, tokenizer), traces.manifest.eos)
    with progress.step("training", STEPS) if progress else nullcontext(lambda done: None) as done:
        predictor, card = Trainer(traces, kind, rule, names, ids, kinds, trials, seed).train(done)
        predictor.save(out, card)
    return predictor


def _check(traces: Traces, kind: str, rule: str, scores: Sequence[str]) -> None:
    check_along_target(traces, "training")
    check_version("the traces'", traces.manifest.scores_version, "collect again")
    if kind not in MODELS:
        raise UsageError(f"kind {kind!r} is unknown; choose one of {', '.join(MODELS)}")
    rule_named(rule, lambda known: known.fuzzy and known.name in REPLAYABLE)
    replayable(rule)
    if not rule_named(rule).fuzzy:
        raise UsageError(f"rule {rule!r} has no threshold; train for fsd-{rule}, which equals {rule} at T < 0")
    if not scores:
        raise UsageError("no scores are given; name at least one")
    if (own := rule_named(rule).score) is not None:
        raise UsageError(f"rule {rule!r} bounds a score of its own, {own}; predictors are for rules over any score")
    for name in scores:
        check_score(traces, name)
        if score_named(name).window:
            raise UsageError(
                f"score {name!r} keeps a token for what was drafted after it, which a predictor of ends does not see; "
                "train for another score"
            )


def _tokenizer(manifest: Manifest, tokenizer: Any) -> Any:
    """Returns the tokenizer that the traces were collected with, loading it where none is given."""
    if tokenizer is None:
        tokenizer = load_tokenizer(manifest.target.id, ModelOptions(manifest.target.revision))
    if tokenizer_fingerprint(tokenizer) != manifest.tokenizer:
        raise UsageError(
            f"the traces were collected with the tokenizer of {manifest.target.id!r}, this is another; pass that one"
        )
    return tokenizer


STEPS = 5  # that progress is reported in
CHECKED = 10_000  # random rows on which monotonicity in T is checked

_LOSSLESS = -1.0
_SHARES = (0.25, 0.5, 0.75)  # the evaluation's thresholds accept these shares of the tokens that T decides about
_REPEATS = 4  # each text is evaluated at a threshold so many times, with other random draft lengths
_SHARES_CHECKED = 40  # values of T's share tried on each of the checked rows


@dataclass(frozen=True)
class Trainer:
    """One training run; its settings have been checked by `train`.

    Args:
        ids: the problems to fit, to calibrate and to evaluate on.
        kinds: token kinds of the traces' tokenizer.
        trials: Optuna trials for each model.
    """

    traces: Traces
    kind: str
    rule: str
    scores: tuple[str, ...]
    ids: ProblemSplit
    kinds: TokenKinds
    trials: int
    seed: int

    def train(self, done: Advance) -> tuple[Predictor, dict[str, bytes]]:
        """Returns the predictor and the files of its card."""
        training, calibration = self._labelled(self.ids.training), self._labelled(self.ids.calibration)
        done(1)
        models, parameters = {}, {}
        for role in ROLES:
            fitting, others = training[role], calibration[role]
            parameters[role] = tune(
                self.kind, fitting.values, fitting.accepted, fitting.problem, self.trials, self.seed,
                self._column_arguments,
            )  # fmt: skip
            fitted = MODELS[self.kind](**parameters[role], **self._column_arguments)
            fitted.fit(fitting.values, fitting.accepted)
            models[role] = Calibrated(fitted).fit(others.values, others.accepted)
            done(1)
        evaluation = self._evaluate(models["accepting"], models["next"])
        done(1)
        falling = sum(self._count_falling(models[role], calibration[role].values) for role in ROLES)
        facts = self._facts(
            reached=evaluation.reached, parameters=parameters, falling=falling,
            rows={role: len(rows.accepted) for role, rows in training.items()},
        )  # fmt: skip
        importances = {
            role: importance(
                models[role], len(self._names), calibration[role].values, calibration[role].accepted, self.seed
            )
            for role in ROLES
        }
        predictor = Predictor(models["accepting"], models["next"], self._scale, facts)
        return predictor, card(facts, self.traces.manifest, evaluation, importances)

    @cached_property
    def _scale(self) -> ShareScale:
        """The scale of T, from the tokens that T decides about.

        Tokens that the rule accepts at every T are left out: where they are the majority they would fill the scale.
        """
        exact, where = replayable(self.rule).exact, problem_filter(self.ids.training)
        if exact is not None:
            accepted = self.traces.to_pandas([exact], where)[exact].to_numpy()
            if accepted.all():
                _check_classes(accepted, self.rule)
            where = [*where, (exact, "==", False)]
        return ShareScale.of_traces(self.traces, self.scores, where)

    def _labelled(self, problems: tuple[int, ...]) -> dict[Forecast, Rows]:
        both = self._rows(problems)
        for rows in both.values():
            _check_classes(rows.accepted, self.rule)
        return both

    @cached_property
    def _hidden(self) -> HiddenInfo | None:
        """The draft's hidden state, where models of this kind read it and the traces hold it."""
        return hidden_of(self.traces.manifest) if self.kind == MLP.kind else None

    @property
    def _names(self) -> tuple[str, ...]:
        """Feature names of both models; the hidden state, whose components have no names, counts as one."""
        return FEATURES if self._hidden is None else (*FEATURES, STATE)

    @property
    def _column_arguments(self) -> dict[str, Any]:
        """Constructor arguments of a model that describe its columns."""
        return {"share": SHARE} | ({} if self._hidden is None else {"hidden": self._hidden.width})

    def _rows(self, problems: tuple[int, ...], **options: Any) -> dict[Forecast, Rows]:
        rows = training_rows(
            self.traces, self.rule, self._scale, self.kinds, problems=problems, seed=self.seed,
            hidden=self._hidden is not None, **options,
        )  # fmt: skip
        return {forecast: each.joined() for forecast, each in rows.items()}

    def _evaluate(self, accepting: AcceptanceModel, following: AcceptanceModel) -> Evaluation:
        hidden = self._hidden is not None
        texts = Texts.of(self.traces, self.rule, self.scores, self.kinds, self.ids.evaluation, hidden)
        rows = {
            (name, T): self._rows(self.ids.evaluation, thresholds={name: [T] * _REPEATS}) for name, T in self._points()
        }
        return evaluate(make_forecasts(accepting, following, rows, texts))

    def _points(self) -> list[Point]:
        """The thresholds to evaluate at: for each score a few quantiles, and T < 0 unless that accepts nothing."""
        lossless = (_LOSSLESS,) if replayable(self.rule).exact else ()
        return [(name, T) for name in self.scores for T in (*lossless, *self._quantiles(name))]

    def _quantiles(self, score: str) -> list[float]:
        """Quantiles of D over the tokens that T decides about; fewer where many of these have the same D."""
        exact = replayable(self.rule).exact
        columns = [score, *([exact] if exact else [])]
        table = self.traces.to_pandas(columns, where=problem_filter(self.ids.training))
        decided = table.loc[~table[exact], score] if exact else table[score]
        finite = decided[np.isfinite(decided)].to_numpy(np.float64)
        return np.unique(np.quantile(finite, _SHARES, method="inverted_cdf")).tolist() if len(finite) else []

    def _count_falling(self, model: AcceptanceModel, observed: Array) -> int:
        """Counts the random rows whose forecast falls as T rises; each value is drawn from its observed column."""
        random = np.random.default_rng(self.seed)
        rows = np.column_stack([random.choice(column, CHECKED) for column in observed.T])
        return falls(model, rows, random.uniform(NEVER, MOST, _SHARES_CHECKED))

    def _facts(self, **results: Any) -> PredictorFacts:
        return PredictorFacts(
            **facts_of_manifest(self.traces.manifest), **results, kind=self.kind, rule=self.rule, seed=self.seed,
            scores=self.scores, features=dict.fromkeys(ROLES, self._names),
            hidden=self._hidden, versions=_versions(),
            problems=Problems(**{part: len(ids) for part, ids in asdict(self.ids).items()}),
            trained=pack_ids(chain.from_iterable(asdict(self.ids).values())),
        )  # fmt: skip


def _versions() -> dict[str, str]:
    names = ("fsd-calib", "lightgbm", "scikit-learn", "optuna", "torch", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _check_classes(accepted: Array, rule: str) -> None:
    """Raises UsageError where all rows are of one class."""
    for only_class, which in ((accepted.all(), "accepted"), (not accepted.any(), "rejected")):
        if only_class:
            raise UsageError(
                f"under {rule} all {len(accepted)} drafted tokens of these traces are {which} at every T: there is "
                "nothing to predict; decode with a fixed draft length, or collect from another pair"
            )
