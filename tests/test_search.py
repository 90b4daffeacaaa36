"""The bisection: it closes in on the last feasible threshold, from either side, and resumes."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.search import BisectionSampler, ShareScale, search_threshold

SCALE = ShareScale((torch.rand(20_000, generator=torch.Generator().manual_seed(0)) ** 4).sort().values)


def share(threshold: float) -> float:
    return float(threshold**0.25)


@pytest.mark.parametrize("upward", [True, False])
@given(edge=st.floats(0.55, 0.999))
def test_bisection_closes_in_on_the_edge(upward: bool, edge: float) -> None:
    """12 halvings of a bracket about 11 wide in logit(u) leave .003."""
    tried: list[tuple[float, bool]] = []

    def evaluate(threshold: float) -> tuple[float, float]:
        shortfall = share(threshold) - edge if upward else edge - share(threshold)
        tried.append((share(threshold), shortfall <= 0))
        return threshold, shortfall

    search_threshold(evaluate, SCALE, upward=upward, trials=12, journal=None)
    nearest = min(abs(u - edge) for u, _ in tried)
    assert nearest <= 0.003 * edge * (1 - edge) + 2e-3
    best = (max if upward else min)(u for u, feasible in tried if feasible)
    assert abs(best - edge) < 0.25


def test_all_feasible_goes_to_the_end_and_none_to_the_beginning() -> None:
    for upward, shortfall, end in ((True, -1.0, 1.0), (True, 1.0, 0.5), (False, -1.0, 0.5), (False, 1.0, 1.0)):
        tried: list[float] = []

        def evaluate(threshold: float, tried: list[float] = tried, shortfall: float = shortfall) -> tuple[float, float]:
            tried.append(share(threshold))
            return threshold, shortfall

        search_threshold(evaluate, SCALE, upward=upward, trials=10, journal=None)
        assert tried[-1] == pytest.approx(end, abs=0.02)


def test_a_threshold_accepts_the_share_it_stands_for() -> None:
    divergences = torch.arange(1, 1001) / 1000
    scale = ShareScale(divergences)
    for wanted in (0.5, 0.9, 0.99):
        threshold = scale.threshold(torch.logit(torch.tensor(wanted)).item())
        assert (divergences <= threshold).double().mean().item() == pytest.approx(wanted, abs=0.0011)
    assert scale.threshold(scale.highest) == pytest.approx(1.0)


def test_the_journal_holds_thresholds_values_and_constraints(tmp_path: Path) -> None:
    journal = tmp_path / "study.log"
    search_threshold(lambda t: (t + 1, t - 0.3), SCALE, upward=True, trials=4, journal=journal)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    (summary,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=summary.study_name, storage=storage).trials
    assert len(trials) == 4
    for trial in trials:
        threshold = trial.user_attrs["threshold"]
        assert trial.value == pytest.approx(threshold + 1)
        assert trial.constraints == {"shortfall": pytest.approx(threshold - 0.3)}


def test_a_sampler_made_anew_goes_on_where_the_study_stands() -> None:
    def run(pieces: int) -> list[float]:
        study = optuna.create_study(direction="maximize")
        for _ in range(pieces):
            study.sampler = BisectionSampler(upward=True)

            def objective(trial: optuna.Trial) -> float:
                x = trial.suggest_float("x", 0, 8)
                trial.set_constraint("shortfall", x - 5)
                return x

            study.optimize(objective, n_trials=6 // pieces)
        return [trial.params["x"] for trial in study.trials]

    assert run(3) == run(1) == [4.0, 6.0, 5.0, 5.5, 5.25, 5.125]
