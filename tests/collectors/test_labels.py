"""Labels are what their definitions say. Tiny models in float64; an answer is right if its number of words is even."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fsd_calib import load_traces
from fsd_collectors.judging.collect import collect_labels
from fsd_collectors.judging.labels import read_about, read_labels
from fsd_collectors.judging.writing import Begun, Finisher
from fsd_collectors.split import Part, tuning_and_certification
from fsd_collectors.store.verifying import verify
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.judging.features import FEATURES, Features
from fsd_decoding.judging.token_classes import token_classes
from fsd_decoding.scores import Seen
from support.models.tiny_models import EOS
from support.models.tiny_pair import related
from support.models.tiny_task import TinyTask, tiny_task
from support.traces.collecting import collect
from support.traces.labelling import TOKENIZER, ByHand, Frame, autojudge, labelled, logits, text_of

PROBLEMS = 80
WHOLE = 10_000  # a budget that suffices for all
PHASE = ("w30", "w31")


@dataclass(frozen=True)
class Phased(TinyTask):
    """A task whose texts have a phase."""

    phase: tuple[str, str] = PHASE


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return related(seed=1, spread=0.05)


@pytest.fixture(scope="module")
def judged(pair: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Frame]:
    """All labels, from left to right."""
    folder = tmp_path_factory.mktemp("judged")
    return folder, labelled(folder, pair, Phased(tiny_task(PROBLEMS).problems), budget=WHOLE)


def tuning(task: TinyTask) -> dict[int, list[int]]:
    """The prompts of the tuning part."""
    return {
        problem.id: TOKENIZER(problem.prompt)["input_ids"] for problem in tuning_and_certification(task.problems)[0]
    }


def _all_in(task: TinyTask, part: Part) -> TinyTask:
    """The task with all problems in one part."""
    return replace(task, problems=tuple(replace(each, part=part) for each in task.problems))


@pytest.mark.parametrize("stop", [(), ("w8", "w30 w5")], ids=["", "stop strings"])
def test_left_to_right_is_autojudge(pair: tuple[Any, Any], tmp_path: Path, stop: tuple[str, ...]) -> None:
    """With a label for every mismatch, against plain greedy decoding in the test."""
    task = _all_in(tiny_task(24, stop=stop), "tuning")
    by_hand = ByHand(*pair, task)
    labels = labelled(tmp_path, pair, task, budget=WHOLE)
    completions: Frame = load_traces(tmp_path).to_pandas(table="completions")
    assert ("stop" in set(completions.finish_reason)) == bool(stop)
    prompts, whole = tuning(task), 0
    for problem, quota in completions[["problem", "quota"]].itertuples(index=False):
        mine = labels[labels.problem == problem]
        if (mine.probability < 1).any():  # a swap has made the text longer, and its mismatches more than its quota
            continue
        rows = mine[["position", "drafted", "target_choice", "harmful"]].itertuples(index=False)
        assert list(map(tuple, rows)) == autojudge(by_hand, prompts[problem])[:quota]
        whole += len(mine) > 1
    assert whole > 3
    assert {True, False} == set(labels.harmful)
    assert (labels.stayed == ~labels.harmful).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_single_swap_is_followed_by_the_target_alone(
    pair: tuple[Any, Any], tmp_path: Path, temperature: float
) -> None:
    """With the same noise at the same places."""
    task = tiny_task(PROBLEMS)
    labels = labelled(tmp_path, pair, task, budget=WHOLE, swaps="single", temperature=temperature)
    decoder = SpeculativeDecoder(*pair, TOKENIZER, rule="target", seed=5, temperature=temperature)
    prompts = tuning(task)
    own = decoder.generate(list(prompts.values()), task.max_new_tokens, ids=list(prompts))
    for (problem, prompt), result in zip(prompts.items(), own, strict=True):
        mine = labels[labels.problem == problem]
        assert mine.empty or task.grade(task.problems[0], result.text)
        for row in mine.itertuples():
            assert list(row.context) == result.tokens[: row.position]
            assert not row.stayed
            begun = [*row.context, row.drafted]
            left = task.max_new_tokens - len(begun)
            if row.drafted in decoder.eos or not left:
                words, spent = begun if row.drafted not in decoder.eos else begun[:-1], 0
            else:
                (rest,) = decoder.generate([[*prompt, *begun]], left, ids=[problem])
                words, spent = [*begun, *rest.tokens], rest.emitted
            assert row.harmful == (not task.grade(task.problems[0], text_of(words)))
            assert row.spent == spent
    assert {True, False} == set(labels.harmful)


def test_likelihoods_are_of_the_own_text_behind_the_swap(pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(PROBLEMS)
    by_hand, prompts = ByHand(*pair, task), tuning(task)
    labels = labelled(tmp_path, pair, task, budget=WHOLE, mode="self")
    for problem, prompt in prompts.items():
        tokens, _ = by_hand.whole(prompt, [])
        mine = labels[labels.problem == problem]
        wanted = [each for each in by_hand.mismatches(prompt, tokens) if each[0] < len(tokens) - 1]
        assert [tuple(row) for row in mine[["position", "drafted", "target_choice"]].itertuples(index=False)] == wanted
        for row in mine.itertuples():
            changed = [*tokens[: row.position], row.drafted, *tokens[row.position + 1 :]]
            before, after = (by_hand.log_likelihoods(prompt, text)[row.position + 1 :] for text in (tokens, changed))
            assert row.change == pytest.approx(float(after.mean() - before.mean()), abs=1e-5)
            assert row.spent == len(after)


def past_before(by_hand: ByHand, prompt: list[int], context: Sequence[int]) -> list[float]:
    """What is known of a text's past: where the draft has another token than the text, the target replaced it."""
    replaced = [place for place, _, _ in by_hand.mismatches(prompt, context)] if len(context) else []
    since = len(context) - 1 - replaced[-1] if replaced else len(context)
    lately = sum(0.5 ** ((len(context) - 1 - place) / 8) for place in replaced)
    begin, end = (TOKENIZER.convert_tokens_to_ids(marker) for marker in PHASE)
    inside = False
    for token in [*prompt, *context]:
        inside = token != end if inside else token == begin
    return [math.log1p(since), lately, float(inside)]


def test_features_are_those_of_decoding(judged: tuple[Path, Frame], pair: tuple[Any, Any]) -> None:
    """At the texts that the rows have as their contexts."""
    labels, task = judged[1], tiny_task(PROBLEMS)
    prompts, by_hand = tuning(task), ByHand(*pair, task)
    for row in labels[::7].itertuples():
        text = [*prompts[row.problem], *row.context]
        p, q = (logits(model, text)[-1:] for model in pair)
        known: dict[str, Any] = {
            "before": partial(torch.tensor, [text[-1]]),
            "places": partial(torch.tensor, [len(row.context)]),
            "past": partial(torch.tensor, [past_before(by_hand, prompts[row.problem], row.context)]),
        }
        classes = token_classes(TOKENIZER, p.shape[-1])
        wanted = Features(classes)(Seen(p, q, torch.tensor([row.drafted]), **known))[0]
        assert np.array(labels.loc[row.Index, list(FEATURES)], dtype=float) == pytest.approx(wanted.numpy(), abs=1e-4)
        assert (row.before, row.target_choice) == (text[-1], int(p.argmax()))
    assert labels[["since", "lately", "phase"]].nunique().min() > 1


def test_only_tuning_problems_with_right_answers_are_labelled(judged: tuple[Path, Frame]) -> None:
    folder, labels = judged
    parts = tuning_and_certification(tiny_task(PROBLEMS).problems)
    completions: Frame = load_traces(folder).to_pandas(table="completions")
    assert completions.problem.tolist() == [problem.id for problem in parts[0]]
    right = set(completions.problem[completions.correct])
    assert 0 < len(right) < len(completions)
    assert set(labels.problem) <= right
    assert set(labels.split) == {"tuning"}
    assert verify(folder) == []


class Agreement(TinyTask):
    """Right is a text that ends as the target's own does."""

    def grade(self, problem: object, text: str, target_text: str = "") -> bool:
        return text.split()[-1:] == target_text.split()[-1:]


def test_a_task_by_agreement_compares_with_the_own_text(pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(PROBLEMS)
    labels = labelled(tmp_path, pair, Agreement(task.problems, by_agreement=True), swaps="single", budget=WHOLE)
    completions: Frame = load_traces(tmp_path).to_pandas(table="completions")
    assert completions.correct.all()
    by_hand, prompts = ByHand(*pair, task), tuning(task)
    own = {problem: by_hand.whole(prompt, [])[0] for problem, prompt in prompts.items()}
    for row in labels[::5].itertuples():
        text, _ = by_hand.whole(prompts[row.problem], [*row.context, row.drafted])
        last, wanted = (text_of([token for token in each if token not in EOS]).split()[-1:] for each in (
            text, own[row.problem]
        ))  # fmt: skip
        assert row.harmful == (last != wanted)
    assert {True, False} == set(labels.harmful)


def test_the_manifest_says_how_labels_were_made(judged: tuple[Path, Frame]) -> None:
    about = read_about(judged[0])
    assert (about["mode"], about["swaps"], about["budget"], about["per_problem"]) == (
        "outcome", "left-to-right", WHOLE, None,
    )  # fmt: skip
    assert about["features"] == list(FEATURES)
    assert about["task"]["name"] == "tiny"
    assert {"target", "draft", "tokenizer", "sampling", "seed"} < set(about)


@pytest.mark.parametrize("swaps", ["left-to-right", "single"])
@pytest.mark.parametrize("limits", [{"budget": 9}, {"budget": 20, "per_problem": 2}], ids=str)
def test_a_budget_is_kept(pair: tuple[Any, Any], tmp_path: Path, swaps: str, limits: dict[str, int]) -> None:
    labels = labelled(tmp_path, pair, tiny_task(400), swaps=swaps, **limits)
    assert len(labels) <= limits["budget"]
    assert swaps == "left-to-right" or len(labels) == limits["budget"]
    assert labels.groupby("problem").size().max() <= limits.get("per_problem", WHOLE)
    assert not labels.duplicated(["problem", "position"]).any()


@pytest.mark.parametrize("swaps", ["left-to-right", "single"])
def test_a_larger_budget_goes_on(pair: tuple[Any, Any], tmp_path: Path, swaps: str) -> None:
    small, large, less = (
        labelled(tmp_path, pair, tiny_task(400), swaps=swaps, budget=budget) for budget in (20, 60, 30)
    )
    assert large[: len(small)].equals(small)
    assert len(small) <= 20 < len(large) <= 60
    assert less.equals(large)
    assert verify(tmp_path) == []


def test_a_beginning_may_be_the_whole_text(pair: tuple[Any, Any]) -> None:
    """It ends as the engine ends texts: by a stop string, an EOS or the limit."""
    decoder = SpeculativeDecoder(*pair, TOKENIZER, rule="target")
    (request,) = decoder.requests(["w3 w4"], 4)
    endings = [[5, 8], [30, 5], [6, EOS[1]], [9, 9, 9, 9], [9]]
    texts = Finisher(decoder, ("w8", "w30 w5"), 2).finish([Begun(request, tokens) for tokens in endings])
    found = [(text.text, list(text.tokens), text.finish_reason) for text in texts[:-1]]
    assert found == [
        ("w5 ", [5, 8], "stop"), ("", [30, 5], "stop"), ("w6", [6], "eos"), ("w9 w9 w9 w9", [9] * 4, "length"),
    ]  # fmt: skip
    assert texts[-1].emitted > 1
    behind = [text.behind(Begun(request, tokens)).emitted for text, tokens in zip(texts, endings, strict=True)]
    assert behind == [0, 0, 0, 0, texts[-1].emitted - 1]


def test_weights_of_sampled_labels_add_up_to_all_mismatches(pair: tuple[Any, Any], tmp_path: Path) -> None:
    """Single swaps, three of each text: the weights of a text are the number of its mismatches."""
    task = tiny_task(PROBLEMS)
    every = labelled(tmp_path / "all", pair, task, swaps="single", budget=WHOLE)
    some = labelled(tmp_path / "some", pair, task, swaps="single", budget=WHOLE, per_problem=3)
    weights = (1 / some.probability).groupby(some.problem).sum()
    assert len(some) < len(every)
    assert weights.to_dict() == pytest.approx(every.groupby("problem").size().to_dict())


@pytest.mark.parametrize("settings", [{}, {"swaps": "single", "per_problem": 2}, {"mode": "self"}], ids=str)
def test_labels_do_not_depend_on_the_batch(pair: tuple[Any, Any], tmp_path: Path, settings: dict[str, Any]) -> None:
    kept = [
        labelled(tmp_path / str(size), pair, tiny_task(PROBLEMS), budget=40, batch_size=size, **settings)
        for size in (1, 7)
    ]
    alone, together = (labels.drop(columns=["run", *FEATURES]) for labels in kept)
    for column in alone.columns.drop("context"):
        assert alone[column].tolist() == pytest.approx(together[column].tolist()), column
    assert [list(each) for each in alone.context] == [list(each) for each in together.context]


class Notes(Silent):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def test_the_cost_is_said_before_the_first_swap(pair: tuple[Any, Any], tmp_path: Path) -> None:
    notes = Notes()
    labels = labelled(tmp_path, pair, tiny_task(400), budget=20, progress=notes)
    (line,) = notes.lines
    assert line.startswith("of the first 32 texts ")
    assert "20 labels take about 32 texts, 20 continuations, " in line
    assert len(labels) <= 20


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"mode": "text"}, "mode is 'text'; it must be outcome or self"),
        ({"swaps": "both"}, "swaps is 'both'; it must be left-to-right or single"),
        ({"mode": "self", "swaps": "left-to-right"}, "give single, or label outcomes"),
        ({"budget": 0}, "budget is 0"),
        ({"per_problem": 0}, "per_problem is 0"),
    ],
)
def test_bad_settings_are_one_line(
    pair: tuple[Any, Any], tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        labelled(tmp_path, pair, tiny_task(8), **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_task_without_tuning_problems_is_refused(pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(8)
    others = _all_in(task, "certification")
    with pytest.raises(UsageError, match="has 8 problems, and none of them is for tuning"):
        labelled(tmp_path, pair, others)


def test_another_run_and_other_folders_are_refused(
    judged: tuple[Path, Frame], pair: tuple[Any, Any], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="holds traces of another run: per_problem None, not 9"):
        labelled(judged[0], pair, tiny_task(PROBLEMS), budget=WHOLE, per_problem=9)
    collect(tmp_path, pair, tiny_task(4))
    with pytest.raises(UsageError, match="holds traces, along-target, and no labels"):
        read_labels(tmp_path)
    with pytest.raises(UsageError, match="there is no table 'tokens'; labels traces have labels, completions"):
        load_traces(judged[0]).to_pandas()
    assert load_traces(judged[0])._repr_html_() is None


def test_a_finished_run_decodes_nothing(judged: tuple[Path, Frame], tmp_path: Path) -> None:
    target, draft = related(seed=1, spread=0.05)
    target.forward = draft.forward = None
    collect_labels(
        Phased(tiny_task(PROBLEMS).problems), target=target, draft=draft, tokenizer=TOKENIZER, out=judged[0],
        batch_size=4, seed=5, budget=WHOLE,
    )  # fmt: skip
    assert read_labels(judged[0]).equals(judged[1])
