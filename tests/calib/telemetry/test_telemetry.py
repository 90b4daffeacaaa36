"""Telemetry of runs, compared with their results, their rounds and the T that policies set."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fsd_calib import Telemetry, together
from fsd_calib.telemetry import COLUMNS, MAX_STEPS, downsample
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.threshold import RoundOutcome, RoundState, ScalePolicy, ThresholdPolicy
from support.models.tiny_models import llama, word_tokenizer
from support.paths import DOCS

PROMPTS = [[5, 9, 2], [30], [8, 8, 3, 2, 11], [4, 6], [12, 13, 14]]


class Loosening(ScalePolicy):
    """T grows with the position of a token. One of its facts is a tensor that it overwrites in later rounds."""

    threshold = 0.3

    def __init__(self) -> None:
        self.rounds = torch.zeros(())

    def scales(self, state: RoundState) -> torch.Tensor:
        return 1.0 + state.places / 10.0

    def observe(self, outcome: RoundOutcome) -> None:
        self.rounds += 1

    def facts(self) -> dict[str, float | torch.Tensor]:
        return {"rounds observed": self.rounds, "twice that": 2.0 * float(self.rounds)}


class PerRow(ThresholdPolicy):
    """A T for every row that does not depend on the T that prompts were given."""

    def thresholds(self, state: RoundState) -> torch.Tensor:
        return 0.1 + state.emitted / 50.0


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    target, draft = llama(seed=1, eos_token_id=[1]), llama(seed=1, eos_token_id=[1])  # alike
    head = draft.get_output_embeddings().weight
    with torch.no_grad():
        head.add_(head.std() * 0.5 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
    return SpeculativeDecoder(target, draft, word_tokenizer(), threshold=0.2, draft_length=3)


def observe_run(decoder: SpeculativeDecoder, **settings: Any) -> tuple[pd.DataFrame, Any, list[RoundRecord]]:
    """Returns the telemetry's table of a run, its results, and the records of its rounds."""
    telemetry, rounds = Telemetry(), list[RoundRecord]()
    arguments = {"batch_size": 2, "temperature": 1.0} | settings
    results = decoder.generate(PROMPTS, 20, observer=together(telemetry, rounds.append), **arguments)
    return telemetry.frame(), results, rounds


@pytest.mark.thinned(every=12)
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("rule", ["fsd-coupled", "fsd-sd", "fsd", "sd", "coupled", "target"])
def test_counts_are_those_of_the_results(decoder: SpeculativeDecoder, rule: str, batch_size: int) -> None:
    frame, results, _ = observe_run(decoder, rule=rule, batch_size=batch_size)
    assert frame.rows.sum() == sum(r.rounds for r in results)  # rows that have finished do not count
    assert frame.rows.max() == batch_size
    assert frame.drafted.sum() == sum(r.drafted for r in results)
    surplus = frame.emitted.sum() - sum(r.emitted for r in results)  # emitted in last rounds beyond the ends of texts
    assert 0 <= surplus <= 3 * len(PROMPTS)
    assert (frame.emitted == frame.accepted + frame.rows).all()
    assert frame.accepted.sum() >= sum(r.accepted for r in results)


def test_counts_are_exact_where_texts_end_with_their_rounds(decoder: SpeculativeDecoder) -> None:
    telemetry = Telemetry()
    results = decoder.generate(PROMPTS, 1, observer=telemetry, rule="target")
    assert telemetry.columns()["emitted"].sum() == sum(r.emitted for r in results) == len(PROMPTS)


def test_t_is_what_the_policy_set(decoder: SpeculativeDecoder) -> None:
    for threshold in (0.25, Loosening(), PerRow()):
        frame, _, rounds = observe_run(decoder, threshold=threshold)
        recorded = [record.thresholds[record.decided] for record in rounds]
        assert frame.threshold_least.to_numpy() == pytest.approx([float(t.min()) for t in recorded])
        assert frame.threshold.to_numpy() == pytest.approx([float(t.mean()) for t in recorded])
        assert frame.threshold_most.to_numpy() == pytest.approx([float(t.max()) for t in recorded])
        assert (frame.threshold_most.nunique() > 1) == isinstance(threshold, ThresholdPolicy)


def test_divergences_are_of_decided_and_of_substituted_tokens(decoder: SpeculativeDecoder) -> None:
    frame, _, rounds = observe_run(decoder, threshold=0.3)
    assert frame.substituted.sum() > 5
    for (_, row), record in zip(frame.iterrows(), rounds, strict=True):
        d, decided = record.proposal.scores, record.decided
        assert row.score == pytest.approx(float(d[decided].mean()))
        assert row.decided == decided.sum()
        alone = record.verdict.accepted & (record.proposal.drafted != record.verdict.fallback) & decided
        assert row.substituted == alone.sum()
        largest = float(d[alone].max()) if alone.any() else np.nan
        assert row.score_substituted == pytest.approx(largest, nan_ok=True)
        assert not largest > row.threshold_most


def test_a_rule_without_t_has_nan_as_t(decoder: SpeculativeDecoder) -> None:
    frame, _, _ = observe_run(decoder, rule="sd")
    assert frame[["threshold_least", "threshold", "threshold_most", "score_substituted"]].isna().all(axis=None)
    assert frame.score.notna().all()
    assert not frame.substituted.any()


def test_a_draft_that_may_be_empty_has_no_t_in_that_round(decoder: SpeculativeDecoder) -> None:
    frame, results, _ = observe_run(
        decoder, batch_size=1, stop_policy=lambda state: [len(state.logits) > 5] * len(state.rows)
    )
    assert frame.threshold.isna().all()
    assert frame.emitted.sum() == sum(r.emitted for r in results)


def test_facts_of_a_policy_are_kept_as_they_were(decoder: SpeculativeDecoder) -> None:
    frame, _, rounds = observe_run(decoder, threshold=Loosening())
    assert frame["policy.rounds observed"].tolist() == list(range(len(rounds)))
    assert frame["policy.twice that"].tolist() == [2 * n for n in range(len(rounds))]
    assert list(frame)[: len(COLUMNS)] == list(COLUMNS)


def test_speeds_are_tokens_over_the_seconds_of_a_window(decoder: SpeculativeDecoder) -> None:
    telemetry = Telemetry()
    decoder.generate(PROMPTS, 20, batch_size=4, observer=telemetry)
    table = telemetry.frame(window=3)
    at = table.iloc[4:7]
    assert table.tokens_per_second[6] == pytest.approx(at.emitted.sum() / (table.seconds[6] - table.seconds[3]))
    streams = (at.rows * at.round_seconds).sum()
    assert table.tokens_per_second_of_one[6] == pytest.approx(at.emitted.sum() / streams)
    assert table.round_seconds.sum() == pytest.approx(table.seconds.iloc[-1])
    assert (table.round_seconds > 0).all()


def test_rounds_of_all_shapes_come_in_order(decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many or few rounds reduced at once, with reads in between; over several calls, shrinking batches, rules."""

    def run(telemetry: Telemetry, read: bool) -> pd.DataFrame:
        for settings in (
            {"rule": "sd"},
            {"threshold": Loosening(), "batch_size": 4},
            {"draft_length": [1, 2, 3, 1, 2]},
        ):
            decoder.generate(PROMPTS, 20, observer=telemetry, temperature=1.0, **settings)
            assert not read or len(telemetry.frame())
        return telemetry.frame().drop(columns=["seconds", "round_seconds", *(n for n in COLUMNS if "second" in n)])

    seldom = run(Telemetry(), read=True)
    monkeypatch.setattr("fsd_decoding.observers.round_log._BLOCK", 2)
    telemetry = Telemetry()
    pd.testing.assert_frame_equal(run(telemetry, read=False), seldom)
    assert telemetry.frame().seconds.is_monotonic_increasing
    assert [(setup.rule, setup.policy) for setup in telemetry.setups] == [
        ("sd", None), ("fsd-coupled", "Loosening"), ("fsd-coupled", None)
    ]  # fmt: skip


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("rule", ["fsd-coupled", "sd"])
def test_no_logits_are_kept(decoder: SpeculativeDecoder, rule: str) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def note(record: RoundRecord) -> None:
        held.extend(weakref.ref(t) for t in (record.proposal.target_logits, record.proposal.draft_logits))

    telemetry = Telemetry()
    decoder.generate(PROMPTS, 20, observer=together(telemetry, note), rule=rule)
    gc.collect()
    assert held
    assert not any(reference() is not None for reference in held)
    assert len(telemetry.frame()) == len(held) / 2


def test_the_texts_are_those_of_a_run_without_an_observer(decoder: SpeculativeDecoder) -> None:
    _, results, _ = observe_run(decoder, threshold=Loosening())
    assert results == decoder.generate(PROMPTS, 20, batch_size=2, temperature=1.0, threshold=Loosening())


@pytest.mark.slow
def test_a_page_is_self_contained(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    telemetry = Telemetry()
    decoder.generate(PROMPTS, 20, threshold=Loosening(), observer=telemetry, batch_size=2)
    text = telemetry.save(tmp_path / "new" / "run.html", title="Texts & <T>").read_text(encoding="utf-8")
    words = text.split("<main>")[1].split("</main>")[0]
    assert not re.search(r"(?:src|href)=|<script", words)
    for words_shown in (
        "Texts &amp; &lt;T&gt;",
        "Threshold T (nats)",
        "Speed of all texts",
        "Policy: rounds observed",
        "Loosening",
    ):
        assert words_shown in text.split("<style>")[0] + words


@pytest.mark.parametrize(("rule", "lacks"), [("sd", "Threshold T"), ("target", "Score D of decided tokens")])
def test_a_page_leaves_out_panels_without_data(
    decoder: SpeculativeDecoder, tmp_path: Path, rule: str, lacks: str
) -> None:
    telemetry = Telemetry()
    decoder.generate(PROMPTS[:2], 6, rule=rule, observer=telemetry, batch_size=1)
    text = telemetry.save(tmp_path / "run.html").read_text(encoding="utf-8")
    assert lacks not in re.findall(r'role="img" aria-label="([^"]*)"', text)
    assert f'<p class="">{lacks}' not in text
    assert "Speed of all texts" not in text  # there is only one at a time
    assert f"The rule {rule} has no T" in text


@pytest.mark.parametrize("threshold", [-1.0, float("inf")])
def test_a_page_shows_runs_at_the_ends_of_t(decoder: SpeculativeDecoder, tmp_path: Path, threshold: float) -> None:
    telemetry = Telemetry()
    decoder.generate(PROMPTS[:1], 2, rule="fsd", threshold=threshold, observer=telemetry)
    assert telemetry.save(tmp_path / "run.html").stat().st_size > 10_000


def many(rounds: int, rows: int = 4) -> pd.DataFrame:
    random = np.random.default_rng(0)
    table = pd.DataFrame({name: random.random(rounds) for name in COLUMNS}).assign(rows=float(rows))
    whole = {
        name: random.integers(1, 20, rounds).astype(float) for name in ("drafted", "accepted", "emitted", "decided")
    }
    return table.assign(**whole, seconds=table.round_seconds.cumsum(), score_substituted=np.nan)


@pytest.mark.parametrize("rounds", [1, MAX_STEPS - 1, MAX_STEPS + 1, 20_000])
def test_many_rounds_are_drawn_in_few_steps_of_means_and_extremes(rounds: int) -> None:
    table = many(rounds)
    steps = downsample(table)
    assert len(steps) == min(rounds, MAX_STEPS)
    assert steps.seconds.is_monotonic_increasing
    assert steps.threshold_least.min() == table.threshold_least.min()
    assert steps.threshold_most.max() == table.threshold_most.max()
    first = (
        table[: -(-rounds // len(steps))]
        if len(steps) == rounds
        else table[np.arange(rounds) * MAX_STEPS // rounds == 0]
    )
    assert steps.threshold[0] == pytest.approx(np.average(first.threshold, weights=first.decided))
    assert steps.accepted[0] == pytest.approx(first.accepted.sum() / first.rows.sum())


def test_a_long_runs_page_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry()
    monkeypatch.setattr(telemetry, "frame", lambda: many(100_000))
    assert telemetry.save(tmp_path / "run.html").stat().st_size < 2_000_000


def test_bad_input_is_refused(decoder: SpeculativeDecoder, tmp_path: Path) -> None:
    telemetry = Telemetry()
    assert list(telemetry.frame()) == list(COLUMNS)
    with pytest.raises(UsageError, match="recorded no round"):
        telemetry.save(tmp_path / "run.html")
    with pytest.raises(UsageError, match="window is 0"):
        telemetry.frame(window=0)
    decoder.generate(PROMPTS[:1], 2, observer=telemetry)
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        telemetry.save(tmp_path)


def test_the_documentation_describes_every_column() -> None:
    pages: Sequence[str] = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    rows = [f"| `{name}` | {unit} | {meaning} |" for name, (unit, meaning) in COLUMNS.items()]
    assert any(all(row in page for row in rows) for page in pages)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_host_does_not_wait_for_the_device(decoder: SpeculativeDecoder) -> None:
    on_gpu = SpeculativeDecoder(decoder.target.cuda(), decoder.draft.cuda(), decoder.tokenizer, draft_length=3)
    telemetry = Telemetry()

    def watch(record: RoundRecord) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            telemetry(record)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    on_gpu.generate(PROMPTS, 20, observer=watch, batch_size=2)
    assert len(telemetry.frame()) > 3
    decoder.target.cpu(), decoder.draft.cpu()
