"""Drift: its false alarms, how soon it detects a shift, and which texts of a decoder count."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.decoding_setting import DecodingSetting
from fsd_decoding.hf import fsd_generate
from fsd_decoding.judging.known import register
from fsd_decoding.models.fingerprint import tokenizer_fingerprint
from fsd_decoding.profile.following import (
    WINDOW,
    Coverage,
    Drafts,
    DraftsByRule,
    Drift,
    expected_range,
    share_of_threshold,
)
from fsd_decoding.profile.parts import AcceptanceInfo, KeptScoresInfo, ModelInfo
from fsd_decoding.proposal import Criterion
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling
from support.calibration.profiles import FAST_ENOUGH, FRONT, TOO_SLOW, UNCERTIFIED, UNTESTED
from support.models.judges import judge_of
from support.models.profile_decoders import decoder_with_profile, unique_profile
from support.models.tiny_models import llama, word_tokenizer

TEXTS = 1_000_000
STEPS = 400  # shares are multiples of 1 / STEPS, so that the law of a window's mean can be had exactly
GRID = np.arange(STEPS + 1) / STEPS
Law = NDArray[np.float64]  # a probability for every share on the grid
LAWS: dict[str, Callable[[], Law]] = {
    "even": lambda: GRID**4 * (1 - GRID) ** 4,  # .50 ± .15
    "skewed": lambda: GRID**7 * (1 - GRID),  # .80 ± .12
    "high": lambda: GRID**19,  # .95 ± .05
    "outliers": lambda: 0.95 * (GRID == 1) + 0.05 * (GRID == 0.5),
}


@dataclass
class Text:
    drafted: int
    accepted: int


def law_of(name: str) -> Law:
    weights = LAWS[name]()
    law: Law = weights / weights.sum()
    return law


def calibrated_on(law: Law, texts: int, draws: np.random.Generator) -> AcceptanceInfo:
    """Returns what a calibration on so many texts records."""
    counts = draws.multinomial(texts, law)
    mean = float(counts @ GRID) / texts
    return AcceptanceInfo(texts=texts, mean=mean, deviation=math.sqrt(counts @ (GRID - mean) ** 2 / (texts - 1)))


def of_windows(law: Law) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the possible means of a window and their probabilities, exact up to rounding at 1e-16."""
    size = WINDOW * STEPS + 1
    sums = np.fft.irfft(np.fft.rfft(law, size) ** WINDOW, size).clip(0)
    return np.arange(size) / (WINDOW * STEPS), sums


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(("name", "most"), [("even", 0.001), ("skewed", 0.003), ("high", 0.015), ("outliers", 0.1)])
@pytest.mark.parametrize("texts", [100, 1000])
def test_false_alarms_among_a_million_texts_are_rare(name: str, most: float, texts: int) -> None:
    """Averaged over 1,000 calibrations; the law of a window is exact, so what remains is their spread."""
    law, draws, windows = law_of(name), np.random.default_rng(0), TEXTS / WINDOW
    means, chances = of_windows(law)
    alarms = []
    for _ in range(1000):
        low, high = expected_range(calibrated_on(law, texts, draws))
        outside = chances[: np.searchsorted(means, low)].sum() + chances[np.searchsorted(means, high, "right") :].sum()
        alarms.append(1 - (1 - min(outside, 1.0)) ** windows)
    assert np.mean(alarms) <= most


def watching(info: AcceptanceInfo, **changes: Any) -> Drift:
    setting, chains = DecodingSetting(rule_named("fsd-coupled"), Criterion(), Sampling(), 0.0625, 5), Drafts(5, None)
    return Drift(info, Coverage(setting, "arithmetic", True, DraftsByRule(chains, chains)), **changes)


@pytest.mark.slow
def test_a_million_like_texts_pass_and_the_first_unlike_ones_do_not() -> None:
    """False alarm of the first half: below .3 % (above). Miss of the second: below 1e-4."""
    draws, law = np.random.default_rng(1), law_of("skewed")
    watch = watching(calibrated_on(law, 500, draws))
    shares = draws.choice(STEPS + 1, p=law, size=TEXTS)
    assert not any(watch.add(Text(STEPS, int(share))) for share in shares)
    shifted = (draws.choice(STEPS + 1, p=law, size=400) - 0.12 * STEPS).clip(0)
    warned = [i for i, share in enumerate(shifted) if watch.add(Text(STEPS, int(share)))]
    assert len(warned) == 1
    assert warned[0] < 2 * WINDOW


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_shift_of_one_deviation_is_seen_in_one_window(sign: int) -> None:
    """Of 300 decoders, at texts = 100 each misses with a chance of .4 %: 8 or more miss with a chance below 1e-4."""
    draws, law = np.random.default_rng(2), law_of("even")
    found = 0
    for _ in range(300):
        watch = watching(calibrated_on(law, 100, draws))
        shares = draws.choice(STEPS + 1, p=law, size=WINDOW) + sign * round(0.147 * STEPS)
        found += any(watch.add(Text(STEPS, int(share))) is not None for share in shares.clip(0, STEPS))
    assert found > 300 - 8


def test_the_message_is_one_line_with_all_numbers_and_comes_once() -> None:
    watch = watching(AcceptanceInfo(texts=700, mean=0.88, deviation=0.07))
    messages = [message for _ in range(3 * WINDOW) if (message := watch.add(Text(100, 61))) is not None]
    assert messages == [
        "the acceptance rate was 61.0% over the last 200 texts, but the profile of 'arithmetic' expects 84.9% to "
        "91.1% (it measured 88.0% on 700 texts): these texts differ from those of the calibration, so its certificate "
        "may not hold; calibrate on texts like these"
    ]


def test_few_texts_in_the_profile_or_empty_drafts_never_warn() -> None:
    few = watching(AcceptanceInfo(texts=99, mean=0.9, deviation=0.1))
    assert not any(few.add(Text(100, 0)) for _ in range(WINDOW))
    idle = watching(AcceptanceInfo(texts=700, mean=0.9, deviation=0.1))
    assert not any(idle.add(Text(0, 0)) for _ in range(2 * WINDOW))


def test_without_spread_a_single_other_text_is_no_drift() -> None:
    constant = watching(AcceptanceInfo(texts=700, mean=1.0, deviation=0.0))
    assert not any(constant.add(Text(4, 4 if i else 3)) for i in range(WINDOW))
    assert any(constant.add(Text(4, 4 if i % 4 else 3)) for i in range(WINDOW))


def test_scores_that_rise_below_t_are_told_though_as_much_is_kept() -> None:
    kept = KeptScoresInfo(texts=700, mean=0.3, deviation=0.2)
    watch = watching(AcceptanceInfo(texts=700, mean=0.88, deviation=0.07), scores=kept)
    assert not any(watch.add(Text(100, 88), 0.28 + 0.04 * (i % 2)) for i in range(WINDOW))
    assert not any(watch.add(Text(100, 88)) for _ in range(WINDOW))  # nobody knows their scores
    messages = [message for _ in range(3 * WINDOW) if (message := watch.add(Text(100, 88), 0.6)) is not None]
    assert len(messages) == 1
    assert messages[0].startswith(
        "the largest js that kept a token, as a share of T, was 60.0% over the last 200 texts, but the profile of "
        "'arithmetic' expects 21.2% to 38.8% (it measured 30.0% on 700 texts): these texts differ"
    )


# In decoders

LOW: dict[str, Any] = {
    "line": {"column": [1], "low": [0.0], "high": [1.0], "weight": [2.0]},
    "trees": {"column": [], "threshold": [], "leaf": []},
}  # logits of a judge that rise by 2 with the margin
ACCEPTS_ALL = 0.7  # js never exceeds ln 2, so only what was drafted beyond a text's end comes to nothing
PROMPTS = [[3 + i % 20, 4, 5 + i // 20] for i in range(WINDOW)]


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return llama(seed=0), llama(seed=1)


@pytest.fixture(scope="module")
def unlike(pair: tuple[Any, Any]) -> dict[str, Any]:
    """A profile of the pair whose own texts accepted half of what was drafted."""
    return {
        "target": ModelInfo.of(pair[0]).model_dump(),
        "draft": ModelInfo.of(pair[1]).model_dump(),
        "tokenizer": tokenizer_fingerprint(word_tokenizer()),
        "dtype": "float64",
        "threshold": ACCEPTS_ALL,
        "acceptance": {"texts": 700, "mean": 0.5, "deviation": 0.1},
    }


def texts(decoder: SpeculativeDecoder, count: int = WINDOW, **settings: Any) -> list[str]:
    """Returns the warnings of drift from decoding so many texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decoder.generate(PROMPTS[:count], max_new_tokens=6, batch_size=WINDOW, **settings)
    assert all(warning.filename == __file__ for warning in caught)
    messages = [str(warning.message) for warning in caught]
    return [message for message in messages if "certificate of the profile" not in message]  # for another setting


def test_a_decoder_that_follows_a_profile_warns_once(pair: tuple[Any, Any], unlike: dict[str, Any]) -> None:
    decoder = decoder_with_profile(pair, unlike)
    assert texts(decoder, WINDOW - 1) == []
    (message,) = texts(decoder, 1)
    assert message.startswith("the acceptance rate was 84.4% over the last 200 texts")
    assert texts(decoder) == []


def test_like_texts_pass(pair: tuple[Any, Any], unlike: dict[str, Any]) -> None:
    assert (
        texts(decoder_with_profile(pair, unlike | {"acceptance": {"texts": 700, "mean": 0.85, "deviation": 0.1}})) == []
    )
    assert texts(decoder_with_profile(pair, unlike | {"acceptance": None})) == []


def shares_of(pair: tuple[Any, Any], score: str) -> list[float]:
    """How near to T the scores of the texts come."""
    decoder = SpeculativeDecoder(*pair, word_tokenizer(), draft_length=5, score=score, threshold=ACCEPTS_ALL)
    results = decoder.generate(PROMPTS, max_new_tokens=6, batch_size=WINDOW)
    return [share_of_threshold(result.interval, ACCEPTS_ALL) for result in results]


@pytest.mark.parametrize(("moved", "told"), [(0.0, 0), (2.0, 1)])
def test_scores_of_a_judge_that_shift_are_told(
    pair: tuple[Any, Any], unlike: dict[str, Any], moved: float, told: int
) -> None:
    """Those of a calibration are of another judge, whose logits are `moved`; T keeps all by either."""
    then, now = (judge_of(pair, offset=offset, **LOW) for offset in (-5.0 + moved, -5.0))
    shares = shares_of(pair, register(then))
    scores = {"texts": 700, "mean": np.mean(shares), "deviation": np.std(shares)}
    decoder = decoder_with_profile(pair, unlike | {
        "acceptance": {"texts": 700, "mean": 0.85, "deviation": 0.1}, "kept_scores": scores,
        "score": now.name, "divergence": now.name, "judge": now.model_dump(mode="json"), "sampling.temperature": 0.0,
    })  # fmt: skip
    found = texts(decoder)
    assert len(found) == told
    assert all(message.startswith(f"the largest {now.name} that kept a token, as a share of T,") for message in found)


def test_streams_count_too(pair: tuple[Any, Any], unlike: dict[str, Any]) -> None:
    decoder = decoder_with_profile(pair, unlike)
    assert texts(decoder, WINDOW - 1) == []
    with pytest.warns(UserWarning, match="the acceptance rate was") as caught:
        list(decoder.stream(PROMPTS[0], max_new_tokens=6))
    assert caught[0].filename == __file__


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "sd"},
        {"threshold": 0.9},
        {"draft_length": 3},
        {"temperature": 0.5},
        {"stop_policy": lambda state: state.drafting},
    ],
)
def test_other_settings_of_one_call_are_not_watched(
    pair: tuple[Any, Any], unlike: dict[str, Any], settings: dict[str, Any]
) -> None:
    decoder = decoder_with_profile(pair, unlike)
    assert texts(decoder, **settings) == []
    assert len(texts(decoder)) == 1  # and they did not count


def test_the_profiles_own_settings_given_by_hand_are_watched(pair: tuple[Any, Any], unlike: dict[str, Any]) -> None:
    own: dict[str, Any] = {"rule": "fsd-coupled", "threshold": ACCEPTS_ALL, "draft_length": 5, "temperature": 0.0}
    assert len(texts(decoder_with_profile(pair, unlike), **own)) == 1


def test_texts_of_one_call_count_by_their_own_threshold(pair: tuple[Any, Any], unlike: dict[str, Any]) -> None:
    mixed = [ACCEPTS_ALL] * (WINDOW // 2) + [0.9] * (WINDOW // 2)
    decoder = decoder_with_profile(pair, unlike)
    assert texts(decoder, threshold=mixed) == []
    assert len(texts(decoder, WINDOW // 2)) == 1


@pytest.mark.parametrize("as_file", [True, False])
def test_generate_of_transformers_is_watched_across_calls(
    pair: tuple[Any, Any], unlike: dict[str, Any], tmp_path: Path, as_file: bool
) -> None:
    made = unique_profile(unlike)
    made.save(tmp_path / "profile.json")
    followed = tmp_path / "profile.json" if as_file else made
    counts = []
    for half in (PROMPTS[: WINDOW // 2], PROMPTS[WINDOW // 2 :], PROMPTS):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pair[0].generate(
                torch.tensor(half), max_new_tokens=6, do_sample=False, custom_generate=fsd_generate,
                draft_model=pair[1], fsd_profile=followed,
            )  # fmt: skip
        drifted = [one for one in caught if "the acceptance rate was" in str(one.message)]
        assert all(one.filename == __file__ for one in drifted)
        counts.append(len(drifted))
    assert counts == [0, 1, 0]


def test_the_lossless_rule_of_a_profile_is_watched(pair: tuple[Any, Any], unlike: dict[str, Any]) -> None:
    acceptance = {"texts": 700, "mean": 1.0, "deviation": 0.02}
    with pytest.warns(UserWarning, match="certifies no threshold"):
        decoder = decoder_with_profile(pair, unlike | UNCERTIFIED | {"acceptance": acceptance})
    assert len(texts(decoder)) == 1  # a random draft is not accepted throughout


# What a decoder takes over


@pytest.mark.parametrize(
    ("outcome", "warning"),
    [
        (UNTESTED, "was never tested"),
        (FRONT, "is a front for 'arithmetic' and chooses no point of it; decoding runs the lossless rule 'coupled'"),
        (TOO_SLOW, "certifies no threshold for 'arithmetic'; decoding runs the lossless rule 'coupled'"),
    ],
)
def test_an_outcome_that_grants_nothing_is_warned_of(
    pair: tuple[Any, Any], unlike: dict[str, Any], outcome: dict[str, Any], warning: str
) -> None:
    with pytest.warns(UserWarning, match=warning):
        decoder_with_profile(pair, unlike | outcome)


def test_where_sd_suffices_it_runs_without_a_warning(pair: tuple[Any, Any], unlike: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        decoder = decoder_with_profile(pair, unlike | FAST_ENOUGH)
    assert (decoder.rule, decoder.draft_length) == ("sd", 4)
