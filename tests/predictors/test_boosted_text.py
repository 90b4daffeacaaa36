"""LightGBM's text of a predictor: whatever is done to it, it is refused in one line or predicts; nothing crashes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from fsd_common.errors import UsageError
from fsd_predictors.models.base import Parts
from fsd_predictors.models.boosted import Boosted

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
