"""Collected rows, hidden states among them, equal values computed another way, in both ways of collecting.

Float64 on tiny random models, where only a mistake can differ; fp32 on the bundled pair (slow)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fsd_calib import NGram, load_task
from fsd_collectors.collection.along_target import Completion, trace_completions
from fsd_collectors.collection.measures import HiddenStates, Measures
from fsd_collectors.collection.on_policy import OnPolicy
from fsd_collectors.split import tuning_and_certification
from fsd_collectors.store.reading import Traces
from fsd_collectors.store.verifying import verify
from fsd_common.errors import UsageError
from fsd_data import pair_paths
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.loading import load_model, load_tokenizer
from fsd_decoding.sampling import Sampling
from support.models.tiny_models import CONTEXT, EOS, FAMILIES, VOCABULARY, llama, random_model
from support.models.tiny_pair import related
from support.models.tiny_task import TinyTask, tiny_task
from support.traces.collecting import NAMES, TOKENIZER, WAYS, Frame, by_problem, collect, contexts
from support.traces.reference_columns import Array, accepted_by_sd, chosen, logits_after, scores_of, shape_of


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return related(seed=1, spread=0.05)


def compare(traces: Traces, models: tuple[Any, Any], task: Any, tokenizer: Any, off: float, agreeing: float) -> None:
    """Compares rows with a computation from the models.

    Args:
        off: tolerance of floats.
        agreeing: smallest share of rows whose discrete columns agree.
    """
    temperature = traces.manifest.sampling.temperature
    prompts = {problem.id: tokenizer(problem.prompt)["input_ids"] for problem in task.problems}
    agreed: list[Array] = []
    for problem, rows, completion in by_problem(traces):
        prompt = prompts[problem]
        texts, counts = contexts(rows, prompt, list(completion.tokens))
        p, q = (
            np.concatenate([logits[-n:] for logits, n in zip(logits_after(model, texts), counts, strict=True)])
            for model in models
        )
        x, at = rows.drafted.to_numpy(), [len(prompt) + position for position in rows.position]
        expected = scores_of(p, q)
        for model, logits in (("target", p), ("draft", q)):
            expected |= {f"{model}_{name}": column for name, column in shape_of(logits, x).items()}
        choices = {
            "drafted": chosen(q, temperature, traces.manifest.seed, problem, at),
            "target_choice": chosen(p, temperature, traces.manifest.seed, problem, at),
            "same_argmax": p.argmax(-1) == q.argmax(-1),
            "same_token": x == rows.target_choice,
            **{name: expected.pop(name) for name in ("target_rank", "draft_rank")},
        }
        accepts, chance = choices["same_token"], choices["same_token"].astype(float)
        if temperature:
            accepts, chance = accepted_by_sd(p, q, x, temperature, traces.manifest.seed, problem, at)
        choices["sd_accepts"], expected["sd_probability"] = accepts, chance
        for name, column in expected.items():
            assert rows[name].to_numpy() == pytest.approx(column, abs=off, rel=off / 5), name
        agreed.append(np.stack([rows[name].to_numpy() == column for name, column in choices.items()]))
    assert np.concatenate(agreed, 1).mean(1).min() >= agreeing


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", WAYS)
def test_rows_equal_a_computation_from_the_models_alone(
    way: str, temperature: float, pair: tuple[Any, Any], tmp_path: Path
) -> None:
    task = tiny_task(14, max_new_tokens=16)
    traces = collect(tmp_path, pair, task, temperature=temperature, **WAYS[way])
    compare(traces, pair, task, TOKENIZER, off=1e-6, agreeing=1.0)
    assert verify(tmp_path) == []
    done = traces.to_pandas(table="completions")
    assert {"eos", "length"} <= set(done.finish_reason)
    for problem, rows, completion in by_problem(traces):
        if completion.finish_reason == "eos" and way == "along the target":
            assert rows.target_choice.iloc[-1] in EOS, problem


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_families_that_process_logits_after_the_last_layer(family: str, tmp_path: Path) -> None:
    """Gemma-2 soft-caps its logits and has sliding windows in every other layer."""
    models = random_model(FAMILIES[family], 3), random_model(FAMILIES[family], 4)
    task = tiny_task(6, max_new_tokens=CONTEXT)
    traces = collect(tmp_path, models, task)
    compare(traces, models, task, TOKENIZER, off=1e-5, agreeing=1.0)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("way", WAYS)
def test_results_do_not_depend_on_the_batch(way: str, pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(9)
    tables = []
    for batch_size in (1, 4, 9):
        traces = collect(tmp_path / str(batch_size), pair, task, batch_size=batch_size, temperature=1.0, **WAYS[way])
        tables.append(traces.to_pandas().drop(columns="run"))
    for other in tables[1:]:
        pd.testing.assert_frame_equal(tables[0], other, rtol=1e-5, atol=1e-7)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("way", WAYS)
def test_small_chunks_give_the_same_rows(
    way: str, pair: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with large vocabularies and long prompts: few positions at once, prompts in several chunks."""
    task = tiny_task(20, max_new_tokens=16)
    traces = collect(tmp_path / "whole", pair, task, hidden=4, **WAYS[way])
    done, whole = traces.to_pandas(table="completions"), traces.to_pandas()
    assert (done[done.finish_reason == "eos"].emitted > 5).any()
    monkeypatch.setattr("fsd_collectors.collection.along_target._CPU_LOGITS", 4 * 5 * VOCABULARY)
    monkeypatch.setattr("fsd_collectors.collection.along_target.PREFILL_CHUNK", 4)
    monkeypatch.setattr("fsd_collectors.collection.measures._CPU_CHUNK", 7 * VOCABULARY)
    pieces = collect(tmp_path / "pieces", pair, task, hidden=4, **WAYS[way]).to_pandas()
    states = [np.stack(list(rows.pop("draft_hidden"))) for rows in (whole, pieces)]
    assert states[0] == pytest.approx(states[1], abs=1e-2)
    pd.testing.assert_frame_equal(whole, pieces, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_along_the_target_equal_decisions_of_decoding(
    temperature: float, pair: tuple[Any, Any], tmp_path: Path
) -> None:
    """`coupled` writes the target's text, so its decisions are at the same positions."""
    task = tiny_task(12, max_new_tokens=20)
    along = collect(tmp_path / "along", pair, task, temperature=temperature).to_pandas()
    coupled = collect(tmp_path / "coupled", pair, task, temperature=temperature, rule="coupled").to_pandas()
    decided = coupled[coupled.decided & coupled.in_text]
    both = decided.merge(along, on=["problem", "position"], suffixes=("", "_along"), validate="one_to_one")
    assert len(both) == len(decided) > 100
    assert (both.accepted.astype(bool) == both.same_token_along).all()
    assert 0.1 < both.same_token.mean() < 0.95
    for name in ("drafted", "target_choice", "same_token", "same_argmax", "sd_accepts", "target_rank", "draft_rank"):
        assert (both[name] == both[f"{name}_along"]).all(), name
    for name in (*NAMES, "sd_probability", "target_entropy", "draft_varentropy", "draft_top2"):
        assert both[name].to_numpy() == pytest.approx(both[f"{name}_along"].to_numpy(), abs=1e-6), name


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "along the target"])
def test_rows_hold_the_outcome_of_every_draft(way: str, pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(14, max_new_tokens=16)
    traces = collect(tmp_path, pair, task, **WAYS[way])
    alone = SpeculativeDecoder(*pair, TOKENIZER, seed=5).generate(
        [p.prompt for p in task.problems], 16, ids=[p.id for p in task.problems], batch_size=4,
        **{"draft_length": 5, "threshold": 0.0} | WAYS[way],
    )  # fmt: skip
    rounds: Frame = traces.to_pandas(table="rounds")
    for (problem, rows, completion), result in zip(by_problem(traces), alone, strict=True):
        assert list(completion.tokens) == result.tokens  # watching changes nothing
        mine = rounds[rounds.problem == problem]
        assert len(mine) == completion.rounds == result.rounds
        assert len(rows) == mine.proposed.sum() == completion.proposed == result.drafted
        assert (rows.accepted & rows.in_text).sum() == completion.accepted == result.accepted
        assert (rows.in_text == (rows.position < completion.emitted)).all()
        assert (rows.position == rows["round"].map(mine.set_index("round").position) + rows.draft_position).all()
        for number, drafted in rows.groupby("round"):
            (counted,) = mine[mine["round"] == number].accepted
            assert drafted.accepted.sum() == counted
            assert drafted.decided.sum() == min(counted + 1, len(drafted))
            assert drafted.accepted.is_monotonic_decreasing
            assert drafted.decided.is_monotonic_decreasing
            for back in (1, 2, 3):
                earlier = mine[mine["round"] == number - back].accepted
                history = drafted[f"accepted_{back}_back"]
                assert history.isna().all() if earlier.empty else (history == earlier.item()).all()
    assert (rounds.draft_seconds > 0).all()
    assert (rounds.verify_seconds > 0).all()
    assert rounds.batch.between(1, 4).all()


def test_an_infinite_threshold_keeps_every_drafted_token(pair: tuple[Any, Any], tmp_path: Path) -> None:
    rows: Frame = collect(tmp_path, pair, tiny_task(8), **WAYS["all drafts"]).to_pandas()
    assert rows.accepted.all()
    assert rows.decided.all()
    assert not rows.same_token.all()


def test_rows_hold_the_decisions_of_a_fuzzy_rule(pair: tuple[Any, Any], tmp_path: Path) -> None:
    rows: Frame = collect(tmp_path, pair, tiny_task(14), rule="fsd", threshold=0.1, score="tv").to_pandas()
    decided = rows[rows.decided]
    assert (decided.accepted == (decided.tv <= 0.1)).all()
    assert 0.1 < decided.accepted.mean() < 0.9
    assert not rows.decided.all()


def test_completions_are_graded_split_and_described(pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(40, stop=("w5",))
    task = TinyTask((*task.problems, task.problems[3]), task.max_new_tokens, task.stop)  # the last one twice
    traces = collect(tmp_path, pair, task)
    assert traces.manifest.task.problems == 40
    results = SpeculativeDecoder(*pair, TOKENIZER, seed=5).generate(
        [p.prompt for p in task.problems[:40]], 12, rule="target", ids=[p.id for p in task.problems[:40]],
        stop=task.stop, batch_size=4,
    )  # fmt: skip
    assert {"stop", "eos", "length"} == {result.finish_reason for result in results}
    tuning = {p.id for p in tuning_and_certification(task.problems)[0]}
    assert 0 < len(tuning) < 40
    whole = zip(by_problem(traces), task.problems[:40], results, strict=True)
    for (problem, rows, completion), asked, result in whole:
        assert problem == asked.id
        for name in ("text", "finish_reason", "emitted", "rounds", "accepted"):
            assert getattr(completion, name) == getattr(result, name), name
        assert list(completion.tokens) == result.tokens
        assert completion.prompt_tokens == len(asked.prompt.split())
        assert completion.split == ("tuning" if problem in tuning else "certification")
        assert completion.correct == task.grade(asked, result.text)
        assert rows.position.tolist() == list(range(result.emitted))
        assert rows.target_choice.tolist()[: len(result.tokens)] == result.tokens
        assert set(rows.correct) == {completion.correct}
        assert set(rows.split) == {completion.split}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("way", ["along the target", "fsd-coupled"])
def test_fifty_problems_of_the_bundled_pair(way: str, temperature: float, tmp_path: Path) -> None:
    """Two forward passes in fp32 differ in the last bits, depending on the processor: a choice between nearly equal
    logits may differ, and a KL of 9 nats was off by 2e-4. The tests in float64 are strict."""
    target, draft = pair_paths()
    tokenizer = load_tokenizer(target)
    models = load_model(target, "cpu", None), load_model(draft, "cpu", None)
    task = load_task("arithmetic", limit=50, tokenizer=tokenizer)
    settings: dict[str, Any] = {"tokenizer": tokenizer, "batch_size": 16, "temperature": temperature}
    traces = collect(tmp_path, models, task, **settings | WAYS[way])
    compare(traces, models, task, tokenizer, off=5e-4, agreeing=0.998)
    assert traces.to_pandas(table="completions").correct.mean() > 0.5


def _last_states(model: Any, texts: list[list[int]]) -> list[Array]:
    with torch.inference_mode():
        return [model(torch.tensor([t]), output_hidden_states=True).hidden_states[-1][0].numpy() for t in texts]


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("way", ["along the target", "fsd-coupled"])
def test_hidden_states_are_those_that_q_was_computed_from(way: str, pair: tuple[Any, Any], tmp_path: Path) -> None:
    task = tiny_task(9)
    traces = collect(tmp_path / "whole", pair, task, hidden="whole", **WAYS[way])
    assert (traces.manifest.hidden, traces.manifest.projected) == (32, False)
    prompts = {p.id: TOKENIZER(p.prompt)["input_ids"] for p in task.problems}
    for problem, rows, completion in by_problem(traces):
        texts, counts = contexts(rows, prompts[problem], list(completion.tokens))
        expected = [states[-n:] for states, n in zip(_last_states(pair[1], texts), counts, strict=True)]
        assert np.stack(list(rows.draft_hidden)) == pytest.approx(np.concatenate(expected), abs=5e-3)  # fp16 of up to 5
    whole = np.stack(list(traces.to_pandas().draft_hidden)).astype(np.float64)
    projected = collect(tmp_path / "projected", pair, task, hidden=12, **WAYS[way])
    assert (projected.manifest.hidden, projected.manifest.projected) == (12, True)
    narrow = np.stack(list(projected.to_pandas().draft_hidden))
    matrix = np.linalg.lstsq(whole, narrow.astype(np.float64))[0]
    assert whole @ matrix == pytest.approx(narrow, abs=0.02)
    # Entries are N(0, 1/12): the sum of 384 squares of such, times 12, is chi-squared, which leaves [250, 540] with
    # probability 4e-7 (and the seed is fixed).
    assert 250 < 12 * (matrix**2).sum() < 540


@pytest.mark.slow
def test_hidden_states_need_a_model_in_eager_mode(pair: tuple[Any, Any]) -> None:
    assert HiddenStates(pair[1], 3, 2**70).width == 3  # whatever a seed may be
    with pytest.raises(UsageError, match=r"NGram\(\) has no hidden state; leave it out"):
        HiddenStates(NGram(), 4, 0)
    with pytest.raises(UsageError, match="the draft is compiled"):
        HiddenStates(torch.compile(pair[1]), 4, 0)
    with pytest.raises(UsageError, match="hidden is 33, but the draft's state has 32 components"):
        HiddenStates(pair[1], 33, 0)
    for wrong in (0, True, "half"):
        with pytest.raises(UsageError, match=f"hidden is {wrong!r}"):
            HiddenStates(pair[1], wrong, 0)  # type: ignore[arg-type]
    decoder = SpeculativeDecoder(*pair, TOKENIZER, compile="capture")
    with HiddenStates(pair[1], "whole", 0, calls=5) as states, pytest.raises(Exception, match="eager drafts only"):
        decoder.generate([[3, 4]], 4, observer=OnPolicy(Measures(["js"], "raw", Sampling()), states))


@pytest.mark.parametrize("lean", [True, False])
def test_rounds_that_draft_nothing_leave_hidden_states_in_place(lean: bool) -> None:
    """The second prompt is beyond the draft's context; the others' states are as without it."""
    draft = llama(seed=2, max_position_embeddings=24)
    decoder = SpeculativeDecoder(llama(seed=1), draft, TOKENIZER, lean=lean)
    prompts = [[3, 4, 5, 6], [7] * 30, [8, 9, 3]]
    kept = []
    for ids in ((0, 1, 2), (0, 2), (1, 0, 2)):
        with HiddenStates(draft, "whole", 0, calls=3) as states:
            observer = OnPolicy(Measures(["js"], "raw", Sampling()), states)
            asked = [prompts[i] for i in ids]
            decoder.generate(asked, 8, ids=ids, draft_length=3, batch_size=1, observer=observer)
        kept.append(observer.collect()[1].states)
    assert kept[0] is not None
    assert len(kept[0]) > 4
    for other in kept[1:]:
        np.testing.assert_array_equal(kept[0], other)


def test_no_rule_accepts_what_lies_beyond_the_drafts_context() -> None:
    """The draft is the target itself, and decoding drafts nothing there."""
    decoder = SpeculativeDecoder(llama(seed=1), llama(seed=1, max_position_embeddings=24), TOKENIZER)
    prompts, measures = [[5] * 10, [6] * 30, [7, 8]], Measures(["js", "margin"], "raw", Sampling())
    texts = decoder.generate(prompts, 30, rule="target", ids=[0, 1, 2])
    asked = [Completion.of(i, prompt, text) for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True))]
    found = trace_completions(decoder, asked, measures, 2)
    drafted = np.array([len(prompt) for prompt in prompts])[found.owner] + found.position < 24
    assert 0 < drafted.sum() < len(drafted)
    columns = dict(zip(measures.columns, found.measured, strict=True))
    for name in ("same_token", "sd_accepts", "sd_probability"):
        np.testing.assert_array_equal(columns[name], drafted)
    for name in ("js", "margin"):
        np.testing.assert_array_equal(np.isfinite(columns[name]), drafted)
