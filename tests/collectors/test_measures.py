"""Measured columns, compared with a computation from the definitions by NumPy in float64.

The logits are random; no model runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import TopKLogitsWarper

from fsd_collectors.collection.measures import Measures, Positions
from fsd_collectors.schema import token_columns
from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.divergence import DIVERGENCES, divergence
from fsd_decoding.proposal import Criterion, Proposal
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from support.traces.reference_columns import shape_of

VOCABULARY = 40
NAMES = [*DIVERGENCES, "js@5"]
SAMPLINGS = {
    "greedy": Sampling(),
    "temperature 1": Sampling(1.0),
    "warped": Sampling(0.7, top_k=12, top_p=0.9),
}


def some(count: int, seed: int = 0, sampling: Sampling = SAMPLINGS["greedy"]) -> Positions:
    """Random related p and q of low to high entropy, with ties and impossible tokens."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-1, 1.5, count, dtype=torch.float64)[:, None]
    target = scale * torch.randn(count, VOCABULARY, generator=generator, dtype=torch.float64)
    draft = target + 0.3 * scale * torch.randn(count, VOCABULARY, generator=generator, dtype=torch.float64)
    target[::5, 3] = target[::5].amax(-1)  # two likeliest tokens
    draft[1::5, :20] = -torch.inf
    positions = torch.arange(count) % 7
    keys = noise.problem_keys(1, list(range(count)))
    no_text = torch.zeros(count, 1, dtype=torch.int64)
    drafted, choice = (
        sampling.draw(sampling.warp(logits[:, None], no_text, positions[:, None]), keys, positions[:, None])[:, 0]
        for logits in (draft, target)
    )
    drafted[::3] = torch.randint(VOCABULARY, (count,), generator=generator)[::3]  # other than q's likeliest too
    return Positions(target, draft, drafted, choice, positions, keys)


def measured(at: Positions, sampling: Sampling, on: Any = "raw") -> dict[str, NDArray[np.float32]]:
    measures = Measures(NAMES, on, sampling)
    return dict(zip(measures.columns, measures(at).numpy(), strict=True))


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_columns_equal_the_definitions_of_the_schema(kind: str) -> None:
    sampling = SAMPLINGS[kind]
    at = some(200, sampling=sampling)
    actual = measured(at, sampling)
    target, draft, drafted = (t.numpy() for t in (at.target_logits, at.draft_logits, at.drafted))
    for model, logits in (("target", target), ("draft", draft)):
        for name, expected in shape_of(logits, drafted).items():
            assert actual[f"{model}_{name}"] == pytest.approx(expected, rel=1e-5, abs=1e-6), name
    for name in NAMES:
        expected = divergence(name, at.target_logits, at.draft_logits).numpy()
        assert actual[name] == pytest.approx(expected, rel=1e-6, abs=1e-7), name
    assert np.array_equal(actual["drafted"], drafted)
    assert np.array_equal(actual["target_choice"], at.choice.numpy())
    assert np.array_equal(actual["same_argmax"], target.argmax(-1) == draft.argmax(-1))
    assert np.array_equal(actual["same_token"], drafted == at.choice.numpy())


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_sd_decides_as_the_rule_does(kind: str) -> None:
    sampling = SAMPLINGS[kind]
    at = some(500, sampling=sampling)
    actual = measured(at, sampling)
    bonus = torch.cat([at.target_logits[:, None], at.target_logits[:, None]], 1)
    positions = torch.stack([at.positions, at.positions + 1], 1)
    round_ = Proposal(
        bonus, at.draft_logits[:, None], at.drafted[:, None], positions, at.keys, at.keys, torch.zeros(500),
        Criterion(), sampling,
    )  # fmt: skip
    verdict = rule_named("sd").judge(round_).accepted[:, 0].numpy()
    assert np.array_equal(actual["sd_accepts"], verdict)
    assert 0 < verdict.mean() < 1
    if sampling.greedy:
        assert np.array_equal(actual["sd_probability"], actual["same_token"])
    else:
        p, q = (torch.softmax(w, -1) for w in (round_.warped_target[:, 0], round_.warped_draft[:, 0]))
        expected = 1 - 0.5 * (p - q).abs().sum(-1)
        assert actual["sd_probability"] == pytest.approx(expected.numpy(), abs=1e-6)


def test_divergences_may_be_of_processed_logits() -> None:
    sampling = SAMPLINGS["warped"]
    at = some(60, sampling=sampling)
    raw, processed = measured(at, sampling), measured(at, sampling, "processed")
    no_text = at.keys[:0]
    p, q = (
        sampling.warp(logits[:, None], no_text, at.positions[:, None])[:, 0]
        for logits in (at.target_logits, at.draft_logits)
    )
    for name in NAMES:
        assert processed[name] == pytest.approx(divergence(name, p, q).numpy(), rel=1e-6, abs=1e-7), name
    for name in raw.keys() - set(NAMES):
        assert np.array_equal(raw[name], processed[name]), name
    greedy = SAMPLINGS["greedy"]
    assert np.array_equal(measured(at, greedy, "processed")["js"], measured(at, greedy)["js"])


@given(split=st.integers(1, 59), seed=st.integers(0, 99))
def test_positions_do_not_depend_on_each_other(split: int, seed: int) -> None:
    """Measured together with others or alone."""
    at, sampling = some(60, seed), SAMPLINGS["temperature 1"]
    parts = [at[:split], at[split:]]
    whole, apart = measured(at, sampling), [measured(part, sampling) for part in parts]
    for name, column in whole.items():
        assert np.array_equal(column, np.concatenate([part[name] for part in apart])), name


def test_chunks_are_joined_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    at = some(50)
    whole = measured(at, SAMPLINGS["greedy"])
    monkeypatch.setattr("fsd_collectors.collection.measures._CPU_CHUNK", 7 * VOCABULARY)
    in_chunks = measured(at, SAMPLINGS["greedy"])
    for name, column in whole.items():
        assert np.array_equal(column, in_chunks[name]), name


def test_measured_columns_are_those_of_the_schema() -> None:
    names = {column.name for column in token_columns(NAMES)}
    assert set(Measures(NAMES, "raw", Sampling()).columns) < names


def test_half_precision_models_are_measured_in_fp32() -> None:
    """The runner returns fp32 logits; measuring in fp32 is accurate enough for large ones too."""
    at = some(100)
    single = Positions(at.target_logits.float(), at.draft_logits.float(), at.drafted, at.choice, at.positions, at.keys)
    double, actual = measured(at, Sampling()), measured(single, Sampling())
    for name in double.keys() - {"target_rank", "draft_rank"}:  # ties of float32 are none of float64
        assert actual[name] == pytest.approx(double[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, repetition_penalty=1.2), Sampling(processors=(TopKLogitsWarper(3),))]
)
def test_sampling_that_depends_on_the_text_is_refused(sampling: Sampling) -> None:
    with pytest.raises(UsageError, match="leave out penalties and processors"):
        Measures(["js"], "raw", sampling)


def test_nan_logits_do_not_affect_other_positions() -> None:
    """Rows that are not used may hold NaN."""
    at = some(20)
    whole = measured(at, SAMPLINGS["temperature 1"])
    at.target_logits[4] = torch.nan
    broken = measured(at, SAMPLINGS["temperature 1"])
    others = np.arange(20) != 4
    for name, column in whole.items():
        assert np.array_equal(column[others], broken[name][others]), name
    assert np.isnan(broken["target_probability"][4])


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown score 'x'"):
        Measures(["x"], "raw", Sampling())
