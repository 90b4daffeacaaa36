"""Training, from traces to an evaluated predictor: what it uses, reports and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fsd_calib import load_traces
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_predictors.features import FEATURES, ROLES, Array, TokenKinds
from fsd_predictors.models.base import AcceptanceModel
from fsd_predictors.models.boosted import Boosted
from fsd_predictors.models.registry import MODELS
from fsd_predictors.predictor import Predictor
from fsd_predictors.share_scale import ShareScale
from fsd_predictors.training.api import train
from fsd_predictors.training.card import importance
from fsd_predictors.training.evaluation import Forecasts, Texts, evaluate, survival_forecasts
from fsd_predictors.training.rows import Rows, problem_filter, split_problems, training_rows
from support.models.tiny_models import word_tokenizer
from support.traces.rows import ON_POLICY, manifest, write
from support.traces.tiny_traces import TOKENIZER, tiny_traces


@pytest.fixture(scope="module")
def training_traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    return tiny_traces(tmp_path_factory.mktemp("traces"))


@pytest.fixture(scope="module")
def trained(training_traces: Traces, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictor]:
    out = tmp_path_factory.mktemp("out") / "predictor"
    return out, train(training_traces, out, scores=("js", "tv"), trials=1, tokenizer=TOKENIZER)


def test_no_problem_of_the_certification_part_and_none_twice(training_traces: Traces) -> None:
    ids = split_problems(training_traces)
    tuning = training_traces.to_pandas(["problem"], where=[("split", "==", "tuning")], table="completions").problem
    together = [*ids.training, *ids.calibration, *ids.evaluation]
    assert sorted(together) == sorted(tuning)
    assert len(ids.calibration) == pytest.approx(0.2 * len(tuning), abs=1)
    assert len(ids.evaluation) == pytest.approx(0.2 * len(tuning), abs=1)
    assert len(together) == len(set(together))


def test_the_predictor_is_saved_with_a_card(trained: tuple[Path, Predictor], training_traces: Traces) -> None:
    out, predictor = trained
    assert Predictor.load(out).fingerprint == predictor.fingerprint
    facts, run = predictor.facts, training_traces.manifest
    assert (facts.kind, facts.rule, facts.scores, facts.traces) == (
        "boosted",
        "fsd-coupled",
        ("js", "tv"),
        run.run,
    )
    parts = split_problems(training_traces)
    assert [*facts.problems.model_dump().values()] == [*map(len, (parts.training, parts.calibration, parts.evaluation))]
    assert (facts.target, facts.draft, facts.tokenizer, facts.eos) == (run.target, run.draft, run.tokenizer, run.eos)
    assert facts.falling == 0
    card = (out / "card.md").read_text()
    for expected in ("reliability.png", "Quality by T", "by step", "pred_contrib", run.run, "top1", "probability"):
        assert expected in card
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_every_forecast_is_evaluated_at_every_threshold(trained: tuple[Path, Predictor]) -> None:
    reached = trained[1].facts.reached
    assert {(each.forecast, each.score) for each in reached} == {(f, d) for f in "abS" for d in ("js", "tv")}
    of_a = [each for each in reached if (each.forecast, each.score) == ("a", "js")]
    assert [each.threshold for each in of_a] == sorted({each.threshold for each in of_a})
    assert of_a[0].threshold < 0
    assert [each.accepted for each in of_a] == sorted(each.accepted for each in of_a)


@pytest.mark.slow
def test_the_same_settings_make_the_same_predictor(training_traces: Traces, tmp_path: Path) -> None:
    made = [
        train(training_traces, tmp_path / str(n), trials=2, seed=seed, tokenizer=TOKENIZER).fingerprint
        for n, seed in enumerate((3, 3, 4))
    ]
    assert made[0] == made[1] != made[2]


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("boosted", "fsd-sd"), ("boosted", "fsd"), ("logistic", "fsd-coupled"),
        pytest.param("head", "fsd-coupled", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_every_kind_and_every_fuzzy_rule(kind: str, rule: str, training_traces: Traces, tmp_path: Path) -> None:
    predictor = train(training_traces, tmp_path, kind, rule, trials=0, tokenizer=TOKENIZER)
    assert predictor.facts.falling == 0
    assert Predictor.load(tmp_path).fingerprint == predictor.fingerprint


def laid(training_traces: Traces) -> tuple[Rows, Texts, tuple[str, float]]:
    """Returns rows at one T, and the texts they are of."""
    point = ("js", 0.1)
    problems = split_problems(training_traces).evaluation
    kinds = TokenKinds.of(TOKENIZER, training_traces.manifest.eos)
    scale = ShareScale.of_traces(training_traces, ("js",), problem_filter(problems))
    rows = training_rows(
        training_traces, "fsd-coupled", scale, kinds, problems=problems, thresholds={"js": [0.1]}, seed=1
    )["accepting"]
    return rows, Texts.of(training_traces, "fsd-coupled", ("js",), kinds, problems), point


class _Half(Boosted):
    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        return np.full((len(X), 2), 0.5)


def test_survival_multiplies_forecasts_and_counts_whole_drafts(training_traces: Traces) -> None:
    """Compared with a count over the traces, token by token."""
    rows, texts, point = laid(training_traces)
    first = rows.values[:, FEATURES.index("step")] == 1
    found = survival_forecasts(_Half(), rows, point, texts, steps=4)
    assert found.forecast == pytest.approx(0.5**found.step)
    table = training_traces.to_pandas(["problem", "position", "same_token", "js", "drafted", "draft_probability"])
    expected = []
    by_problem = {problem: part.reset_index() for problem, part in table.groupby("problem")}
    for step in range(1, 5):
        for values, problem in zip(rows.values[first], rows.problem[first], strict=True):
            text, begin = by_problem[problem], int(values[FEATURES.index("position")])
            draft = text.iloc[begin : begin + step]
            if len(draft) == step and not draft.drafted[:-1].isin(training_traces.manifest.eos).any():
                expected.append((step, (draft.same_token | (draft.js <= 0.1)).all(), draft.draft_probability.prod()))
    steps, accepted, product = zip(*expected, strict=True)
    assert found.step.tolist() == list(steps)
    assert found.accepted.tolist() == list(accepted)
    assert found.probability == pytest.approx(np.array(product), rel=1e-5)
    assert 0 < np.mean(accepted) < 1


def test_a_perfect_forecast_and_a_wrong_one() -> None:
    truth = np.arange(3000) % 3 == 0
    chance = np.where(truth, 0.9, 0.1)
    judged = Forecasts(chance, truth, np.repeat([1.0, 2.0], 1500), 1 - chance, chance)
    evaluation = evaluate({"a": {("js", -1.0): judged}})
    (quality,) = evaluation.reached
    assert (quality.auc, quality.probability_auc, quality.entropy_auc) == (1.0, 1.0, 1.0)
    assert quality.error == pytest.approx(0.1)
    assert [(each.step, each.rows, each.accepted) for each in evaluation.steps] == [(1, 1500, 1 / 3), (2, 1500, 1 / 3)]
    assert evaluation.steps[0].mean == pytest.approx(0.9 / 3 + 0.1 * 2 / 3)
    assert list(evaluation.curves["a"]) == ["js, lossless"]
    _, accepted = evaluation.curves["a"]["js, lossless"]
    assert accepted.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("sign", [1, -1])
def test_what_stands_beside_a_forecast_gets_its_better_direction(sign: int) -> None:
    """For each T of its own."""
    likely = np.random.default_rng(0).uniform(size=2000)
    truth = sign * (likely - 0.5) + 0.1 * np.sin(1e4 * likely) > 0  # a rank that errs
    steps = np.ones(2000)
    judged = {
        0.1: Forecasts(likely, truth, steps, likely, likely),
        0.2: Forecasts(likely, ~truth, steps, likely, likely),
    }
    points = {("js", T): each for T, each in judged.items()}
    reached = evaluate({"b": points}).reached
    assert reached[0].probability_auc == reached[0].entropy_auc == reached[1].probability_auc
    assert {0.9 < (quality.auc or 0) < 1 for quality in reached} == {True, False}
    assert 0.9 < (reached[0].probability_auc or 0) < 1


def test_one_class_has_no_auc() -> None:
    rows = np.full(50, 0.5)
    (quality,) = evaluate({"b": {("tv", 0.5): Forecasts(rows, np.ones(50, bool), rows * 2, rows, rows)}}).reached
    assert quality.auc is None
    assert quality.error == pytest.approx(0.5)


@pytest.mark.parametrize("kind", MODELS)
def test_relevant_features_have_the_importance(kind: str) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(3000, 4))
    accepted = rows[:, 2] + 0.1 * random.normal(size=3000) > 0
    quick = {"steps": 200} if kind == "head" else {}
    model: AcceptanceModel = MODELS[kind](**quick).fit(rows, accepted)
    shares, _ = importance(model, 4, rows, accepted, seed=0)
    assert shares.sum() == pytest.approx(1)
    assert shares[2] > 0.8


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kind": "oracle"}, "kind 'oracle' is unknown; choose one of logistic, boosted, head"),
        ({"rule": "sd-block"}, "rule 'sd-block' cannot be replayed"),
        ({"rule": "sd"}, "rule 'sd' has no threshold; train for fsd-sd, which equals sd at T < 0"),
        ({"scores": ()}, "no scores are given; name at least one"),
        ({"scores": ("ag",)}, "hold no score 'ag', only js, tv"),
        ({"limit": 49}, "hold 49 problems of the tuning part within limit; a predictor needs at least 50"),
        ({"tokenizer": word_tokenizer(39)}, "collected with the tokenizer of '', this is another"),
    ],
)
def test_bad_settings_are_refused(
    settings: dict[str, Any], complaint: str, training_traces: Traces, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refusal:
        train(training_traces, tmp_path / "out", **{"tokenizer": TOKENIZER, **settings})
    assert complaint in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_too_few_problems_are_refused(tmp_path: Path) -> None:
    few = tiny_traces(tmp_path / "few", problems=60)
    with pytest.raises(UsageError, match=r"hold \d\d problems of the tuning part; a predictor needs at least 50"):
        train(few, tmp_path / "out", tokenizer=TOKENIZER)


def test_a_draft_that_is_its_target_leaves_nothing_to_predict(tmp_path: Path) -> None:
    same = tiny_traces(tmp_path / "same", spread=0.0)
    with pytest.raises(UsageError, match=r"all \d+ drafted tokens of these traces are accepted at every T"):
        train(same, tmp_path / "out", tokenizer=TOKENIZER)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (ON_POLICY, "these traces are on-policy; training needs traces along the target"),
        ({"scores_version": 0}, "the traces' scores are version 0, these are version 1; collect again"),
    ],
)
def test_unsuitable_traces_are_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    traces = load_traces(write(tmp_path / "traces", manifest(**changes)))
    with pytest.raises(UsageError) as refusal:
        train(traces, tmp_path / "out", tokenizer=TOKENIZER)
    assert complaint in str(refusal.value)


def test_a_folder_of_other_files_is_refused_before_training(training_traces: Traces, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"holds 'thesis\.tex', which is not a file of a predictor"):
        train(training_traces, tmp_path, tokenizer=TOKENIZER)


def test_features_are_named_in_order(trained: tuple[Path, Predictor]) -> None:
    assert trained[1].facts.features == dict.fromkeys(ROLES, FEATURES)
