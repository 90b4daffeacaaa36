"""LightGBM's text of a predictor, and single rows through its C API: refused in one line, or equal scores."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import lightgbm
import numpy as np
import pytest
from lightgbm import basic

from fsd_common.errors import UsageError
from fsd_predictors.models.base import Parts
from fsd_predictors.models.boosted import Boosted, FastRow, one_row
from support.traces.acceptance_rows import SHARE, rows

FEATURES, MUTATIONS, PROCESSES = 5, 400, 4
_RUN = """
import json, sys
import numpy as np
from fsd_common.errors import UsageError
from fsd_predictors.models.base import Parts
from fsd_predictors.models.boosted import Boosted

numbers, texts = json.load(open(sys.argv[1]))
rows = np.random.default_rng(0).uniform(size=(50, 5))
refused = 0
for number, text in enumerate(texts):
    print(number, file=sys.stderr)
    try:
        model = Boosted.from_parts(Parts(numbers, text=text))
        assert np.isfinite(model.logits(rows)).all()
        assert [model.logit(row) for row in rows.tolist()] == model.logits(rows).tolist()
        assert model.parts().text
    except UsageError as error:
        assert "\\n" not in str(error)
        refused += 1
print(refused)
"""


@pytest.fixture(scope="module")
def parts() -> Parts:
    random = np.random.default_rng(0)
    rows = random.uniform(size=(3000, FEATURES))
    rows[:, 3] = 0.0  # a feature that no tree can use
    accepted = random.uniform(size=3000) < (rows[:, 0] + rows[:, 1]) / 2
    return Boosted(trees=3, leaves=7).fit(rows, accepted).parts()


def test_what_training_writes_is_read(parts: Parts) -> None:
    assert Boosted.from_parts(parts).parts() == parts


def test_a_tree_without_a_split_is_read() -> None:
    rows = np.random.default_rng(0).uniform(size=(200, FEATURES))
    model = Boosted(rows_a_leaf=5000).fit(rows, rows[:, 0] > 0.5)
    assert Boosted.from_parts(model.parts()).logits(rows).tolist() == model.logits(rows).tolist()


CRAFTED = {
    "a child beyond the nodes": (r"left_child=\S+", "left_child=900"),
    "a leaf beyond the leaves": (r"right_child=\S+", "right_child=-900"),
    "a cycle": (r"left_child=\S+", "left_child=0"),
    "more leaves than there are": (r"num_leaves=\d+", "num_leaves=900"),
    "a negative number of leaves": (r"num_leaves=\d+", "num_leaves=-3"),
    "a huge number of leaves": (r"num_leaves=\d+", "num_leaves=2147483647"),
    "a feature beyond the features": (r"split_feature=\d+", "split_feature=77"),
    "a negative feature": (r"split_feature=\d+", "split_feature=-1"),
    "a categorical split": (r"decision_type=\d+", "decision_type=1"),
    "categories without any": (r"num_cat=0", "num_cat=3"),
    "linear leaves": (r"is_linear=0", "is_linear=1"),
    "a threshold that is not finite": (r"threshold=[\d.]+", "threshold=nan"),
    "a leaf that is not finite": (r"leaf_value=-?[\d.]+", "leaf_value=inf"),
    "a size beyond the file": (r"tree_sizes=\d+", "tree_sizes=99999999"),
    "a negative size": (r"tree_sizes=\d+", "tree_sizes=-1"),
    "fewer features than there are": (r"max_feature_idx=4", "max_feature_idx=1"),
    "several classes": (r"num_class=1", "num_class=3"),
    "another objective": (r"objective=.*", "objective=multiclass num_class:9"),
    "a name that breaks LightGBM's JSON": (r"Column_0", r'{"a":['),
    "another name": (r"Column_0", "share"),
    "an unknown field": (r"label_index=0", "label_index=0\nlinear_tree=1"),
    "a tree twice": (r"Tree=1", "Tree=0"),
    "no end": (r"end of parameters", "end"),
}


@pytest.mark.parametrize("what", CRAFTED)
def test_crafted_text_is_refused_in_one_line(parts: Parts, what: str) -> None:
    text, count = re.subn(*CRAFTED[what], parts.text, count=1)
    assert count
    if "size" not in what:
        text = with_sizes(text)  # so that nothing else is wrong
    with pytest.raises(UsageError, match=r"^the model's text is not as training writes it: .*train again$"):
        Boosted.from_parts(Parts(parts.numbers, text=text))


@pytest.mark.parametrize("signs", [(1, 1, 1), (1, 1, -1)])
def test_leaves_whose_sum_may_overflow_are_refused(parts: Parts, signs: tuple[int, ...]) -> None:
    """Each is finite, and forecasts, their sums, would be infinite or NaN."""
    sign = iter(signs)

    def huge(leaves: re.Match[str]) -> str:
        value = f"{next(sign) * 1.7}e308"
        return "leaf_value=" + " ".join([value] * len(leaves[1].split()))

    text = with_sizes(re.sub(r"leaf_value=(.*)", huge, parts.text))
    with pytest.raises(UsageError, match=r"more than a float holds; restore it from a copy, or train again$"):
        Boosted.from_parts(Parts(parts.numbers, text=text))


def with_sizes(text: str) -> str:
    """The text with the lengths that its trees have."""
    sizes = " ".join(str(len(block)) for block in re.findall(r"Tree=\d+\n.*?\n\n\n", text, re.DOTALL))
    return re.sub(r"tree_sizes=.*", f"tree_sizes={sizes}", text)


def mutated(text: str, random: Random) -> str:
    """Alters the text in one of many ways; half of them keep tree_sizes right."""
    at, to = sorted(random.randrange(len(text)) for _ in range(2))
    lines = text.split("\n")
    line = random.randrange(40) if random.random() < 0.7 else random.randrange(len(lines))
    numbers = re.sub(r"-?\d+(\.\d+)?", lambda _: random.choice(["0", "-1", "3", "99999", "-7", "1e400", "nan"]),
                     lines[line], count=random.randint(1, 3))  # fmt: skip
    changed = random.choice([
        text[:at] + chr(ord(text[at]) ^ 1 << random.randrange(7)) + text[at + 1 :],
        text[:at] + text[to:],
        text[:at],
        text[:at] + text[at : at + 40] * 2 + text[at + 40 :],
        "\n".join([*lines[:line], numbers, *lines[line + 1 :]]),
        "\n".join([*lines[:line], *lines[line + 1 :]]),
        "\n".join([*lines[:line], lines[line][: len(lines[line]) // 2], *lines[line + 1 :]]),
    ])  # fmt: skip
    sizes = " ".join(str(len(block)) for block in re.findall(r"Tree=\d+\n.*?\n\n\n", changed, re.DOTALL))
    return re.sub(r"tree_sizes=.*", f"tree_sizes={sizes}", changed) if random.random() < 0.5 else changed


@pytest.mark.slow
def test_mutated_text_never_ends_the_process(parts: Parts, tmp_path: Path) -> None:
    """Many are refused; the others differ in a number that does not matter to the structure."""
    random, refused = Random(0), 0
    for process in range(PROCESSES):
        texts = [mutated(parts.text, random) for _ in range(MUTATIONS // PROCESSES)]
        (tmp_path / f"{process}.json").write_text(json.dumps([parts.numbers, texts]))
        run = subprocess.run([sys.executable, "-c", _RUN, str(tmp_path / f"{process}.json")],
                             capture_output=True, text=True, check=False)  # fmt: skip
        assert run.returncode == 0, f"mutation {run.stderr.splitlines()[-1]} of process {process}: {run.stderr[-300:]}"
        refused += int(run.stdout.splitlines()[-1])
    assert MUTATIONS / 2 < refused < MUTATIONS


@pytest.fixture(scope="module")
def booster() -> lightgbm.Booster:
    return Boosted(share=SHARE).fit(*rows(5000, 0)[:2]).booster_


def test_equals_predict(booster: lightgbm.Booster) -> None:
    seen = rows(500, 1)[0]
    told = np.concatenate([seen, -100 * seen, np.zeros((1, seen.shape[1]))])
    fast = one_row(booster)
    assert isinstance(fast, FastRow)
    assert [fast(row) for row in told.tolist()] == np.asarray(booster.predict(told, raw_score=True)).tolist()


def test_each_has_its_own_model() -> None:
    seen = rows(50, 1)[0]
    models = [Boosted(share=SHARE, seed=seed, trees=5 + seed).fit(*rows(5000, seed)[:2]) for seed in range(2)]
    scores = [(models[0].logit(row), models[1].logit(row)) for row in seen.tolist()]
    assert scores == list(zip(*(model.logits(seen).tolist() for model in models), strict=True))


@pytest.mark.slow
def test_keeps_its_model_alive() -> None:
    model = Boosted(share=SHARE).fit(*rows(5000, 0)[:2])
    row = rows(1, 1)[0][0].tolist()
    fast, told = one_row(model.booster_), model.logit(row)
    del model
    gc.collect()
    Boosted(share=SHARE).fit(*rows(5000, 3)[:2])  # might take its place in memory
    assert fast(row) == told


def test_accepts_all_kinds_of_numbers(booster: lightgbm.Booster) -> None:
    fast = one_row(booster)
    assert fast([1, np.float64(2), 3.0, False, 0, 1]) == fast([1.0, 2.0, 3.0, 0.0, 0.0, 1.0])


def test_falls_back_where_the_call_is_missing(booster: lightgbm.Booster, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows(1, 1)[0]
    monkeypatch.setattr(basic, "_LIB", SimpleNamespace())
    with pytest.warns(UserWarning, match=r"LightGBM .* has no such call \(.*\): one row takes longer"):
        slow = one_row(booster)
    monkeypatch.undo()
    assert not isinstance(slow, FastRow)
    assert slow(row[0].tolist()) == np.asarray(booster.predict(row, raw_score=True))[0]


class Otherwise:
    """LightGBM's library with a single-row call that returns probabilities instead of scores."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def LGBM_BoosterPredictForMatSingleRowFastInit(self, booster: Any, kind: int, *rest: Any) -> Any:  # noqa: N802
        return self._library.LGBM_BoosterPredictForMatSingleRowFastInit(booster, 0, *rest)


def test_falls_back_where_the_call_gives_other_scores(
    booster: lightgbm.Booster, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = rows(1, 1)[0]
    monkeypatch.setattr(basic, "_LIB", Otherwise(basic._LIB))  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="gives other scores by its C API: one row takes longer"):
        slow = one_row(booster)
    assert not isinstance(slow, FastRow)
    assert slow(row[0].tolist()) == np.asarray(booster.predict(row, raw_score=True))[0]


@pytest.mark.slow
def test_threads_do_not_mix_their_rows(booster: lightgbm.Booster) -> None:
    """Without the lock this fails in nearly every run."""
    seen = rows(20_000, 1)[0]
    fast, told = one_row(booster), np.asarray(booster.predict(seen, raw_score=True)).tolist()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda each: [fast(row) for row in each], [seen.tolist()] * 4))
    assert answers == [told] * 4
