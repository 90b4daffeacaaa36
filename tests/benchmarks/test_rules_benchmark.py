"""The benchmark that compares lossy rules: its texts are those of decoding, and its sums those of its texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rules
from fsd_calib import CostModel, SpeculativeDecoder, collect_traces
from fsd_calib.tasks.base import Task
from fsd_data import pair_paths
from lib.common.forked_programs import run
from lib.pool import Pool, pool_task
from lib.rules.compared import Compared
from lib.rules.costs import decoding_of
from lib.rules.curves import Curve, draws
from lib.rules.judges import Judge, Panel, defaults
from lib.rules.replayed import REPLACED, from_traces
from lib.rules.stored import SEED, Stored
from lib.rules.texts import Text, Texts, write
from support.paths import BENCHMARKS

PROBLEMS, LENGTH = 5, 8
JS, COUPLED = Judge("coupled", "js"), Judge("coupled")


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(*pair_paths(), draft_length=LENGTH, device="cpu")


@pytest.fixture(scope="module")
def task(decoder: SpeculativeDecoder) -> Task:
    return pool_task(SEED, PROBLEMS, decoder.tokenizer)


def written(decoder: SpeculativeDecoder, task: Task, panel: Panel) -> Mapping[int, Texts]:
    return dict(write(decoder, task, list(enumerate(task.problems)), panel, rows=3))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_text_is_what_decoding_gives(decoder: SpeculativeDecoder, task: Task, temperature: float) -> None:
    """Of every judge and problem, at a T within the interval of one of its texts."""
    here, panel, random = decoder.with_config(temperature=temperature), Panel.at(temperature), Random(0)
    texts = written(here, task, panel)
    for judge in panel.judges:
        for number, problem in enumerate(task.problems):
            text = random.choice(texts[number][judge])
            inside = random.uniform(text.lo, min(text.hi, text.lo + 3.0))
            (decoded,) = here.generate(
                [problem.prompt], task.max_new_tokens, ids=[problem.id], stop=task.stop, **decoding_of(judge, inside)
            )
            found = (decoded.emitted, decoded.rounds, decoded.drafted, decoded.accepted)
            assert found == (text.tokens, text.rounds, text.drafted, text.accepted), judge
            assert task.grade(problem, decoded.text) == text.correct
            if judge.score is not None:
                ends = [
                    end if math.isfinite(end) else default
                    for end, default in zip(decoded.interval, (-1.0, math.inf), strict=True)
                ]
                assert ends == pytest.approx([text.lo, text.hi], rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_texts_are_those_of_the_pool(decoder: SpeculativeDecoder, task: Task) -> None:
    """Which another program decoded, on another machine: at most one in ten may differ by rounding."""
    pool, texts, agreed, asked = Pool.read(), written(decoder, task, Panel("coupled", ("js", "doubt"))), 0, 0
    for name in ("js", "doubt"):
        arm = pool.arms[name, LENGTH]
        for number in range(PROBLEMS):
            for text in texts[number][Judge("coupled", name)]:
                if max(text.lo, 0.0) + 1e-4 < min(text.hi, arm.most):
                    (row,) = arm.rows(np.array([number]), max(text.lo, 0.0) + 1e-4)
                    known = (
                        bool(arm.correct[row]),
                        *(int(of[row]) for of in (arm.tokens, arm.rounds, arm.drafted, arm.accepted)),
                    )
                    agreed, asked = agreed + (known == text[2:]), asked + 1
    assert asked > 10 * PROBLEMS
    assert agreed >= 0.9 * asked


def texts_of(ends: Sequence[float], random: Random) -> list[Text]:
    """Texts that end at some T, with made-up outcomes."""
    begins = [-1.0, *sorted(set(ends))]
    return [
        Text(lo, hi, random.random() < 0.7, random.randint(1, 9), random.randint(1, 9), random.randint(1, 9), 0)
        for lo, hi in zip(begins, [*begins[1:], math.inf], strict=True)
    ]


def columns_of(texts: Sequence[Sequence[Text]]) -> dict[str, NDArray[Any]]:
    rows = [(number, *text) for number, each in enumerate(texts) for text in each]
    return {
        name: np.array(values) for name, values in zip(("problem", *Text._fields), zip(*rows, strict=True), strict=True)
    }


@settings(max_examples=60, deadline=None)
@given(
    ends=st.lists(st.lists(st.integers(0, 6).map(float), max_size=4), min_size=2, max_size=6),
    t=st.floats(-0.5, 7.0), seed=st.integers(0, 9),
)  # fmt: skip
def test_a_curve_sums_over_problems_at_every_threshold(ends: list[list[float]], t: float, seed: int) -> None:
    random = Random(seed)
    texts = [texts_of(each, random) for each in ends]
    alone = np.array([random.random() < 0.8 for _ in texts])
    weights = draws(len(texts), 5)
    curve = Curve.of(columns_of(texts), alone, weights)
    place = curve.place(t)
    at = [next(text for text in each if text.lo <= t < text.hi or (t < 0 and text.lo < 0)) for each in texts]
    for name in ("correct", "tokens", "rounds", "drafted"):
        wanted = weights @ np.array([getattr(text, name) for text in at], np.float64)
        np.testing.assert_array_equal(getattr(curve, name)[:, place], wanted)
    both = np.array([text.correct and target for text, target in zip(at, alone, strict=True)], np.float64)
    np.testing.assert_array_equal(curve.both[:, place], weights @ both)
    np.testing.assert_array_equal(curve.right[:, place], weights @ alone.astype(np.float64))


def test_the_error_of_a_retention_is_that_of_resampled_problems() -> None:
    random = np.random.default_rng(0)
    alone = random.random(2000) < 0.9
    kept = np.where(random.random(2000) < 0.05, ~alone, alone)
    texts = [[Text(-1.0, math.inf, bool(correct), 5, 2, 8, 3)] for correct in kept]
    curve = Curve.of(columns_of(texts), alone, draws(2000))
    assert curve.error[0, 0] == pytest.approx(curve.retention[1:, 0].std(), rel=0.1)


def made_up() -> tuple[Panel, Compared]:
    """Of 100 solved problems js saves rounds of each at T = .005, and loses one at each hundredth of T; of the
    two weights of an ensemble the looser one loses ten."""
    panel = Panel("coupled", ("js",), (Judge("ensemble", threshold=0.1), Judge("ensemble", threshold=0.3)))
    base = [[Text(-1.0, math.inf, True, 60, 20, 160, 40)] for _ in range(100)]
    js = [
        [
            Text(-1.0, 0.005, True, 60, 20, 160, 40),
            Text(0.005, end, True, 60, 10, 80, 50),
            Text(end, math.inf, False, 60, 9, 72, 51),
        ]
        for end in (number / 100 + 0.01 for number in range(100))
    ]
    strict = [[Text(-1.0, math.inf, True, 60, 19, 152, 41)] for _ in range(100)]
    loose = [[Text(-1.0, math.inf, number >= 10, 60, 15, 120, 45)] for number in range(100)]
    texts = [columns_of(each) for each in (base, js, strict, loose)]
    slower = dict.fromkeys(panel.judges, 1.0) | {Judge("coupled", "js"): 1.25}
    return panel, Compared(panel, texts, draws(100, 50), CostModel(0.0, 1.0), slower)


def test_the_fastest_threshold_keeps_what_is_wanted_and_pays_for_its_score() -> None:
    _, compared = made_up()
    levels = {(level["rule"], level["wanted"]): level for level in compared.levels()}
    js = levels["js", 0.97]
    assert js["retention"] == pytest.approx(0.97)
    assert js["gain"].value == pytest.approx(20 / (9.97) / 1.25, rel=1e-3)  # three texts have a round less
    assert js["gain"].low <= js["gain"].value <= js["gain"].high
    assert js["best"] == "js"
    mixed = levels["ensemble", 0.97]
    assert (mixed["setting"], mixed["gain"].value) == ("ensemble w = 0.9", pytest.approx(20 / 19))
    assert mixed["of_the_best"].value == pytest.approx(20 / 19 / js["gain"].value)
    assert compared.accuracy == 1.0


def test_a_default_is_beside_the_best_that_keeps_as_much() -> None:
    _, compared = made_up()
    (mixed,) = compared.of_defaults(LENGTH)
    assert mixed["engine"] == "transformers"
    assert mixed["retention"].value == pytest.approx(0.9)
    assert mixed["gain"].value == pytest.approx(20 / 15)
    assert mixed["best_that_keeps_as_much"]["rule"] == "js"


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_every_default_has_a_judge_in_the_panel(temperature: float) -> None:
    panel = Panel.at(temperature)
    found = defaults(panel, LENGTH)
    assert {default.judge for default in found} <= set(panel.judges)
    assert len(found) == (4 if temperature == 0.0 else 6)


def test_stored_texts_are_read_as_they_were_and_a_run_goes_on(tmp_path: Path) -> None:
    random, panel = Random(0), Panel("coupled", ("js",))
    texts: dict[int, Texts] = {
        number: {COUPLED: texts_of([], random), JS: texts_of([0.1, 0.3], random)} for number in range(7)
    }
    Stored(tmp_path / "texts", panel).add_all((number, texts[number]) for number in (3, 0, 4))
    again = Stored(tmp_path / "texts", panel)
    assert again.numbers == {0, 3, 4}
    again.add_all((number, texts[number]) for number in (6, 1, 2, 5))
    alone, js = again.columns(5)
    for columns, judge in ((alone, COUPLED), (js, JS)):
        wanted = columns_of([texts[number][judge] for number in range(5)])
        for name, values in wanted.items():
            np.testing.assert_array_equal(columns[name], values)


@pytest.mark.slow
def test_traces_say_how_long_rounds_are_where_so_much_is_replaced(tmp_path: Path) -> None:
    task, (target, draft) = pool_task(SEED, 40), pair_paths()
    traces = collect_traces(
        task, target=target, draft=draft, out=tmp_path / "traces", scores=("js", "margin", "fly@6", "typical")
    )
    found = from_traces(traces, LENGTH)
    lossless = found[0]["tokens_per_round"]
    for score in ("js", "margin", "typical"):
        lengths = [each["tokens_per_round"] for each in found if each["score"] == score]
        assert lossless <= lengths[0] <= lengths[1] <= lengths[2]
    assert len(found) == 1 + 4 * len(REPLACED) + 2  # FLy's and Medusa's knobs


@pytest.mark.slow
def test_the_smoke_run_of_rules_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    given_ = ("--quick", "--out", str(out), "--texts", str(tmp_path / "texts"), "--chart", str(tmp_path))
    ran = run(BENCHMARKS / "rules.py", *given_)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())["temperatures"]
    assert [each["temperature"] for each in found] == list(rules.TEMPERATURES)
    for each in found:
        assert {level["rule"] for level in each["levels"]} == {*Panel.at(each["temperature"]).scores, "ensemble"}
    assert (tmp_path / "rules-dark.png").stat().st_size > 10_000
    parts = sorted((tmp_path / "texts").rglob("*.parquet"))
    assert run(BENCHMARKS / "rules.py", *given_).returncode == 0
    assert sorted((tmp_path / "texts").rglob("*.parquet")) == parts
    again = json.loads(out.read_text())["temperatures"]
    assert [one["accuracy"] for one in again] == [one["accuracy"] for one in found]
