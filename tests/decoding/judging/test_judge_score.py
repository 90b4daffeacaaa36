"""The score of a judge: its numbers, where it is known, and where it is refused."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.testing import checks_of
from fsd_common.errors import UsageError
from fsd_common.user_folders import CACHE_VARIABLE
from fsd_decoding.config import DecodingConfig
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.judging import known
from fsd_decoding.judging.known import register
from fsd_decoding.judging.model import JudgeModel, Line, Trees
from fsd_decoding.judging.on_device import OnDevice, packed_classes
from fsd_decoding.judging.score import judge_named
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import Seen, score_named
from support.calibration.profiles import profile
from support.models.followed_pair import PAIR, followed
from support.models.judges import judge, judge_of
from support.models.tiny_models import VOCABULARY, word_tokenizer
from support.models.tiny_pair import ragged_prompts

NEW = 10


def decoder(**settings: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder(*PAIR, word_tokenizer(), draft_length=4, **settings)


def logit(log_p_x: float, margin: float, letters: bool) -> float:
    """Of the judge made by hand."""
    line = -0.3 * log_p_x + min(max(margin, 0.0), 0.5) + 2.0 * min(max(margin, 0.5), 1.0)
    leaf = (0.4 if margin > 0.5 else 0.1) if log_p_x <= -2.0 else (-0.1 if letters else -0.2)
    return -2.0 + line + leaf


def test_the_score_is_what_line_and_trees_say() -> None:
    score = score_named(register(judge()))
    p, q = (3 * torch.randn((6, 5, VOCABULARY), generator=torch.Generator().manual_seed(i)) for i in range(2))
    x = q.argmax(-1)
    found, log_p = score.of(Seen(p, q, x)), p.log_softmax(-1)
    for place in torch.cartesian_prod(torch.arange(6), torch.arange(5)).tolist():
        row, column = place
        log_p_x, log_p_y = log_p[row, column, x[row, column]].item(), log_p[row, column].max().item()
        letters = x[row, column].item() % 5 == 2
        wanted = 1 / (1 + math.exp(-logit(log_p_x, 1 - math.exp(log_p_x - log_p_y), letters)))
        wanted = 0.0 if x[row, column] == p[row, column].argmax() else wanted
        assert found[row, column].item() == pytest.approx(wanted, rel=1e-4), place


def test_with_sampling_the_likeliest_token_is_judged_as_any_other() -> None:
    """As labels have it, where the target may have drawn another one."""
    greedy, sampled = (score_named(register(judge(temperature=t))) for t in (0.0, 1.0))
    logits = torch.randn((9, VOCABULARY), generator=torch.Generator().manual_seed(0))
    seen = Seen(logits, logits.flip(0), logits.argmax(-1))
    assert (greedy.of(seen) == 0).all()
    assert (sampled.of(seen) > 0.01).all()


@given(seed=st.integers(0, 2**32 - 1), depth=st.integers(0, 4), count=st.integers(1, 5))
def test_trees_add_the_leaves_that_a_walk_down_them_reaches(seed: int, depth: int, count: int) -> None:
    random, inner = Random(seed), (1 << depth) - 1
    columns = [random.choices(range(3), k=inner) for _ in range(count)]
    thresholds = [random.choices(range(-2, 3), k=inner) for _ in range(count)]
    leaves = [[random.gauss(0, 1) for _ in range(inner + 1)] for _ in range(count)]
    trees = Trees.model_validate({"column": columns, "threshold": thresholds, "leaf": leaves})
    rows = [[random.randint(-2, 2) for _ in range(3)] for _ in range(6)]  # at thresholds, too
    found = OnDevice.of(0.5, Line(column=(), low=(), high=(), weight=()), trees, torch.device("cpu"))
    wanted = []
    for row in rows:
        logit = 0.5
        for column, threshold, leaf in zip(columns, thresholds, leaves, strict=True):
            node = 0
            while node < inner:
                node = 2 * node + 1 + (row[column[node]] > threshold[node])
            logit += leaf[node - inner]
        wanted.append(logit)
    assert found.logit(torch.tensor(rows, dtype=torch.float32)).tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    "sent",
    [lambda name: Setting("fsd-coupled", name, 4), lambda name: DecodingConfig(score=name), score_named],
    ids=["setting", "config", "score"],
)
def test_what_is_pickled_takes_its_judge_along(
    sent: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = judge(task="elsewhere")
    made = sent(register(own))
    pickled = pickle.dumps(made)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "empty"))
    monkeypatch.setattr(known, "_known", {})  # as in a process on another machine
    judge_named.cache_clear()
    found = pickle.loads(pickled)
    assert judge_named(own.name).model == own
    assert type(found) is type(made)
    assert found == made or found.written == made.written


def test_a_judge_passes_the_checks_of_scores() -> None:
    name = register(judge())
    for check in checks_of("score"):
        if check.__name__ not in ("below_zero_it_is_lossless", "intervals_decode_equal"):  # which decode bundled models
            check(name)


def test_it_is_lossless_below_zero_and_its_intervals_hold() -> None:
    prompts, name = ragged_prompts(4), register(judge_of(PAIR))
    target = decoder(rule="target").generate(prompts, NEW)
    exact = decoder(score=name, threshold=-1e-9).generate(prompts, NEW)
    assert [result.tokens for result in exact] == [result.tokens for result in target]
    changed = 0  # texts that are no longer the target's
    for threshold in (0.05, 0.15, 0.3, 0.6):
        found = decoder(score=name, threshold=threshold).generate(prompts, NEW)
        for prompt, result, own in zip(prompts, found, target, strict=True):
            low, high = result.interval
            middle = (max(low, 0.0) + min(high, 1.0)) / 2
            (again,) = decoder(score=name, threshold=middle).generate([prompt], NEW)
            assert again.tokens == result.tokens
            changed += result.tokens != own.tokens
    assert changed


def test_places_are_counted_from_the_beginning_of_a_text() -> None:
    """Of rows that begin and end at different times, with prompts of different lengths."""
    prompts, found = ragged_prompts(7), {place: [0] * 0 for place in range(7)}

    def observe(round_: RoundRecord) -> None:
        places = round_.proposal.seen("raw").places
        assert places is not None
        for request, row, accepted in zip(round_.requests, places().tolist(), round_.accepted.tolist(), strict=True):
            if request is not None:
                assert row == list(range(row[0], row[0] + len(row)))
                found[request.index] += [row[0], row[0] + accepted + 1]  # where the round began, and the next one does

    results = decoder(threshold=0.1).generate(prompts, NEW, batch_size=3, observer=observe)
    for place, result in enumerate(results):
        begins, ends = found[place][::2], found[place][1::2]
        assert begins == [0, *ends[:-1]]
        assert len(begins) == result.rounds
    assert max(result.rounds for result in results) > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "0" * 64}, "was trained for a target with fingerprint 000000000000"),
        ({"draft": "1" * 64}, "was trained for a draft with fingerprint 111111111111"),
        ({"tokenizer": "x"}, "was trained with another tokenizer"),
        ({"temperature": 0.6}, "trained with temperature 0.6, and this"),
        ({"top_k": 50}, "trained with top_k 50, and this decodes with None"),
        ({"top_p": 0.9}, "trained with top_p 0.9, and this decodes with None"),
        ({"min_p": 0.1}, "trained with min_p 0.1, and this decodes with None"),
        ({"repetition_penalty": 1.1}, "trained with repetition_penalty 1.1, and this decodes with 1.0"),
    ],
)
def test_a_decoder_refuses_a_judge_of_something_else(changes: dict[str, Any], message: str) -> None:
    fitting = judge_of(PAIR)
    other = register(JudgeModel.model_validate(fitting.model_dump() | changes))
    with pytest.raises(UsageError, match=message):
        decoder(score=other)


def test_a_judge_that_reads_the_text_says_where_it_is_not_shown() -> None:
    name = register(judge(features=["log_p_x", "margin", "before_letters"]))
    logits = torch.zeros(1, VOCABULARY)
    with pytest.raises(UsageError, match="reads the text before a drafted token, which is not shown here"):
        score_named(name).of(Seen(logits, logits, torch.tensor([1])))


def test_names_follow_from_the_whole_judge() -> None:
    names = {judge().name, judge(offset=-1.0).name, judge(task="gsm8k").name, judge(trained="").name}
    assert len(names) == 4
    assert all(name.startswith("judge@") and name[6:].isdecimal() for name in names)


def test_other_processes_find_it_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    own = judge(task="found elsewhere")
    name = register(own)
    monkeypatch.setattr(known, "_known", {})  # as in another process
    assert judge_named.__wrapped__(name).model == own


@pytest.mark.parametrize("name", ["judge", "judge@0000000000000000", "judge@../x"])
def test_one_that_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not known here: 'judge' is learned, so give its model"):
        score_named(name)


def test_files(tmp_path: Path) -> None:
    judge().save(tmp_path / "judge.json")
    assert JudgeModel.load(tmp_path / "judge.json") == JudgeModel.load(tmp_path) == judge()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": "much"}, "offset: Input should be a valid number"),
        ({"schema_version": 2}, "schema_version 2"),
        ({"features": ["margin"]}, "a column is 2, and there are 1 features"),
        ({"more": 1}, "more: Extra inputs"),
        ({"trees": {"column": [[0]], "threshold": [[0.0]], "leaf": [[0.0]]}}, "trees are not complete"),
        ({"line": {"column": [0], "low": [0.0], "high": [0.0], "weight": []}}, "different lengths"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    content = json.loads(judge().model_dump_json()) | changes
    (tmp_path / "judge.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        JudgeModel.load(tmp_path)


@pytest.mark.parametrize("classes", ["%%%", "aGVsbG8="])
def test_damaged_classes_are_refused(classes: str) -> None:
    score = score_named(register(judge(classes=classes)))
    logits = torch.zeros(1, VOCABULARY)
    with pytest.raises(UsageError, match=r"the tokens' classes of judge@\d+ are damaged"):
        score.of(Seen(logits, logits, torch.tensor([1])))


def test_classes_of_fewer_tokens_than_there_are_are_refused() -> None:
    score = score_named(register(judge(classes=packed_classes(torch.zeros(7, dtype=torch.uint8)))))
    logits = torch.zeros(1, VOCABULARY)
    with pytest.raises(UsageError, match=rf"classes of 7 tokens, and there are {VOCABULARY}: train it again"):
        score.of(Seen(logits, logits, torch.tensor([1])))


def with_judge(own: JudgeModel | None, score: str) -> ThresholdProfile:
    described = None if own is None else own.model_dump(mode="json")
    return followed({"score": score, "divergence": score, "judge": described, "sampling.temperature": 0.0})


def test_a_profile_holds_its_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = judge_of(PAIR, task="of a profile")
    with_judge(own, own.name).sealed().save(tmp_path / "profile.json")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "empty"))
    monkeypatch.setattr(known, "_known", {})  # as in another process, of another user
    loaded = ThresholdProfile.load(tmp_path / "profile.json")
    assert loaded.judge == own
    following = SpeculativeDecoder.from_pretrained(*PAIR, loaded, tokenizer=word_tokenizer())
    assert following.score == own.name
    plain = decoder(score=own.name, threshold=0.0625).with_config(draft_length=3)
    prompts = ragged_prompts(3)
    assert [r.tokens for r in following.generate(prompts, NEW)] == [r.tokens for r in plain.generate(prompts, NEW)]


def test_a_profile_without_its_judge_is_refused() -> None:
    own = judge_of(PAIR)
    with pytest.raises(ValueError, match="they are one"):
        with_judge(None, own.name)
    with pytest.raises(ValueError, match="they are one"):
        with_judge(judge_of(PAIR, offset=3.0), own.name)


def test_a_profile_refuses_a_judge_of_other_models() -> None:
    other = judge_of(PAIR, tokenizer="x")
    with pytest.raises(ValueError, match="judge is of other models"):
        with_judge(other, other.name)
    assert profile().judge is None
