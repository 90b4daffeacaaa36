"""The draft's hidden state in traces, training, replay and decoding: the same state everywhere, and no hook left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit

from fsd_collectors.replay.cost import CostModel
from fsd_collectors.replay.simulation import replay
from fsd_collectors.store.reading import Traces
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine.result import Result
from fsd_decoding.policies.stopping import DraftState, StopPolicy
from fsd_predictors.facts import HiddenInfo
from fsd_predictors.features import FEATURES, ROLES
from fsd_predictors.predictor import Predictor
from fsd_predictors.stopping.in_loop import DraftStates, EarlyStop
from fsd_predictors.stopping.in_replay import InReplay
from fsd_predictors.stopping.of_predictor import Stopper
from fsd_predictors.stopping.rule import Answer, Round, StoppingRule
from fsd_predictors.training.api import train
from fsd_predictors.training.evaluation import Texts, survival_forecasts
from fsd_predictors.training.rows import training_rows
from fsd_predictors.training.tuning import tune
from support.models.tiny_pair import ragged_prompts, related
from support.models.tiny_task import tiny_task
from support.traces.stopping_inputs import KINDS
from support.traces.tiny_traces import TOKENIZER, tiny_traces

NEW, MOST, WIDTH, COSTS = 24, 6, 8, CostModel(0.3, 3.0, 0.05)
States = dict[tuple[int, ...], Any]  # by the text that they are behind
INFOS = [HiddenInfo(width=WIDTH, seed=0), HiddenInfo(width=32, seed=None)]


pytestmark = pytest.mark.slow  # training a head takes most of the time


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    """Returns a decoder with the models of `tiny_traces`."""
    return SpeculativeDecoder(*related(seed=1, spread=0.05), TOKENIZER)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    return tiny_traces(tmp_path_factory.mktemp("traces"), hidden=WIDTH)


@pytest.fixture(scope="module")
def trained(traces: Traces, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    out = tmp_path_factory.mktemp("predictor")
    train(traces, out, "head", trials=0, tokenizer=TOKENIZER)
    assert "draft_hidden" in (out / "card.md").read_text()
    return Predictor.load(out)


@pytest.fixture(scope="module")
def stopper(trained: Predictor, traces: Traces) -> Stopper:
    return Stopper.fitted(trained, "js", TOKENIZER, traces, COSTS, MOST)


class Looking(StoppingRule):
    """Never stops, and records the states it receives."""

    name, reads_state = "looking", True

    def __init__(self) -> None:
        self.shown: list[tuple[Any, Any]] = []  # (H, n) numbers, and n positions in the completion

    def goes_on(self, drafting: Round) -> Answer:
        position = np.atleast_1d(drafting.context.position) + len(drafting.steps) - 1
        self.shown.append((np.array(drafting.state).reshape(len(drafting.state), -1), position))
        return super().goes_on(drafting)

    def wants_more(self, drafting: Round) -> bool:
        return True

    @property
    def identity(self) -> str:
        return self.name


class Watching(EarlyStop):
    """Records which texts the states are of."""

    def __init__(self, decoder: SpeculativeDecoder, info: HiddenInfo) -> None:
        self.rule, self.seen = Looking(), dict[tuple[int, ...], Any]()
        super().__init__(self.rule, KINDS, states=DraftStates(decoder.draft, info))

    def goes_on(self, state: DraftState) -> list[bool]:
        asked = len(self.rule.shown)
        answer = super().goes_on(state)
        lengths = (state.batch.lengths + len(state.logits) - 1).tolist()
        for row, length in enumerate(lengths):
            if state.going[row] and len(self.rule.shown) > asked:
                self.seen[tuple(state.batch.tokens[row, :length].tolist())] = self.rule.shown[-1][0][:, row]
        return answer


def prompts_of(decoder: SpeculativeDecoder, count: int) -> dict[int, list[int]]:
    problems = tiny_task(300, max_new_tokens=NEW).problems[:count]
    requests = decoder.requests([problem.prompt for problem in problems], NEW)
    return {problem.id: request.prompt for problem, request in zip(problems, requests, strict=True)}


def traced_states(traces: Traces, prompts: dict[int, list[int]]) -> States:
    rows: Any = traces.to_pandas(["problem", "position", "draft_hidden"])
    texts: Any = traces.to_pandas(["problem", "tokens"], table="completions").set_index("problem").tokens
    return {
        (*prompts[row.problem], *texts[row.problem][: row.position]): row.draft_hidden
        for row in rows.itertuples()
        if row.problem in prompts
    }


def of_looking(decoder: SpeculativeDecoder, info: HiddenInfo, prompts: list[list[int]], rows: int) -> States:
    policy = Watching(decoder, info)
    decoder.generate(prompts, NEW, rule="coupled", draft_length=MOST, stop_policy=policy, batch_size=rows)
    return policy.seen


def alike(one: States, other: States) -> int:
    """Checks that common states are equal and returns their number."""
    both = one.keys() & other.keys()
    for text in both:
        np.testing.assert_allclose(one[text], other[text].astype(float), rtol=2e-3, atol=1e-3)  # traces hold fp16
    return len(both)


@pytest.mark.parametrize("info", INFOS, ids=["projected", "whole"])
def test_decoding_reads_the_states_that_traces_hold(
    info: HiddenInfo, decoder: SpeculativeDecoder, tmp_path: Path
) -> None:
    """At every position that a draft reached, also at the first of a round, where two tokens are fed."""
    prompts = prompts_of(decoder, 30)
    traced = traced_states(tiny_traces(tmp_path, hidden=info.setting), prompts)
    alone, together = (of_looking(decoder, info, list(prompts.values()), rows) for rows in (1, 7))
    assert alone.keys() == together.keys()
    assert alike(alone, together) == len(alone)
    assert alike(alone, traced) > 0.8 * len(traced)
    assert np.std([state[0] for state in alone.values()]) > 0.1


def test_replay_reads_the_column(traces: Traces) -> None:
    table: Any = traces.to_pandas(["problem", "position", "draft_hidden"])
    problem = int(table.problem[table.position.idxmax()])
    states = np.stack(table[table.problem == problem].draft_hidden)
    rule = Looking()
    replay(traces, "coupled", "js", 0.0, MOST, InReplay(rule, KINDS).policy, where=[("problem", "==", problem)])
    for shown, position in rule.shown:
        at = np.minimum(position.astype(int), len(states) - 1)
        assert np.array_equal(shown.T, states[at])
    assert len(rule.shown) > MOST


def test_a_head_reads_the_states_and_another_kind_does_not(trained: Predictor, traces: Traces, tmp_path: Path) -> None:
    facts = trained.facts
    assert facts.hidden == INFOS[0]
    assert facts.features == dict.fromkeys(ROLES, (*FEATURES, "draft_hidden"))
    assert facts.falling == 0
    rows = training_rows(traces, "fsd-coupled", trained.scale, KINDS, hidden=True)
    for model, of in ((trained.accepting, rows["accepting"]), (trained.next, rows["next"])):
        seen = of.joined().values
        other = np.column_stack([seen[:, :-WIDTH], seen[::-1, -WIDTH:]])
        assert np.abs(model.predict_proba(seen) - model.predict_proba(other)).mean() > 0.01
    boosted = train(traces, tmp_path, "boosted", trials=0, tokenizer=TOKENIZER)
    assert boosted.facts.hidden is None
    assert boosted.facts.features == dict.fromkeys(ROLES, FEATURES)


class _First:
    """A forecast from the hidden state alone."""

    def predict_proba(self, x: Any) -> Any:
        chance = expit(x[:, len(FEATURES)])
        return np.column_stack([1 - chance, chance])


def test_survival_reads_the_state_after_the_features(trained: Predictor, traces: Traces) -> None:
    rows = training_rows(traces, "fsd-coupled", trained.scale, KINDS, thresholds={"js": [0.1]}, hidden=True)[
        "accepting"
    ]
    problems = np.unique(rows.problem).tolist()
    texts = Texts.of(traces, "fsd-coupled", ("js",), KINDS, problems, hidden=True)
    seen, model = rows.joined(), _First()
    found = survival_forecasts(model, seen, ("js", 0.1), texts, steps=1)  # type: ignore[arg-type]
    first = seen.values[:, FEATURES.index("step")] == 1
    assert np.allclose(found.forecast, expit(seen.values[first][:, len(FEATURES)]))


def test_tuning_passes_the_columns_to_the_models() -> None:
    rows = np.random.default_rng(0).random((80, 3))
    with pytest.raises(UsageError, match="share is 9; it must be one of the 3 columns"):
        tune("logistic", rows, rows[:, 0] > 0.5, np.arange(80), 1, 0, {"share": 9})


def test_decoding_takes_the_replayed_rounds(stopper: Stopper, decoder: SpeculativeDecoder, traces: Traces) -> None:
    prompts = prompts_of(decoder, 30)
    settings: dict[str, Any] = {"rule": "fsd-coupled", "threshold": -1.0, "draft_length": MOST}
    found = decoder.generate(list(prompts.values()), NEW, **settings, stop_policy=stopper.in_loop(decoder.draft))
    rounds = [
        replay(traces, "fsd-coupled", "js", -1.0, MOST, stopper.in_replay(), [("problem", "==", problem)]).rounds
        for problem in prompts
    ]
    assert [r.rounds for r in found] == rounds
    assert sum(r.drafted for r in found) < 0.9 * MOST * sum(rounds)


def test_results_do_not_depend_on_the_batch(stopper: Stopper, decoder: SpeculativeDecoder) -> None:
    some, policy = ragged_prompts(14), stopper.in_loop(decoder.draft)
    thresholds = [0.02 * (i % 5) for i in range(len(some))]

    def decoded(rows: int) -> list[Result]:
        found = decoder.generate(
            some,
            NEW,
            0.9,
            rule="fsd-coupled",
            threshold=thresholds,
            draft_length=MOST,
            stop_policy=policy,
            batch_size=rows,
        )
        return [replace(r, interval=(0, 0)) for r in found]

    one_by_one = decoded(1)
    assert decoded(5) == one_by_one
    assert decoded(14) == one_by_one


def hooks(decoder: SpeculativeDecoder) -> int:
    return len(decoder.draft.get_output_embeddings()._forward_pre_hooks)


def test_hooks_are_removed(stopper: Stopper, decoder: SpeculativeDecoder) -> None:
    policy = stopper.in_loop(decoder.draft)
    assert hooks(decoder) == 0
    decoder.generate([[2, 3]], NEW, stop_policy=policy)
    assert hooks(decoder) == 0


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_failed_steps_hook_is_removed_by_the_next_call(
    stopper: Stopper, decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = stopper.in_loop(decoder.draft)
    decoder = SpeculativeDecoder(decoder.target, decoder.draft, decoder.tokenizer, decoder.decoding, lean=False)
    expected = decoder.generate([[2, 3]], NEW, stop_policy=policy)
    watch = policy.goes_on
    with monkeypatch.context() as patched:

        def goes_on(state: DraftState) -> Any:
            patched.setattr(decoder.draft.model, "forward", interrupted)
            return watch(state)

        patched.setattr(policy, "goes_on", goes_on)
        with pytest.raises(KeyboardInterrupt):
            decoder.generate([[2, 3]], NEW, stop_policy=policy)
    assert hooks(decoder) == 1
    assert decoder.generate([[2, 3]], NEW, stop_policy=policy) == expected
    assert hooks(decoder) == 0


def test_forward_passes_of_other_threads_are_ignored(decoder: SpeculativeDecoder) -> None:
    states, ids = DraftStates(decoder.draft, INFOS[0]), torch.tensor([[5, 6], [9, 3]])
    with ThreadPoolExecutor(1) as pool, torch.inference_mode():
        states.watch()
        pool.submit(decoder.draft, ids).result()
        decoder.draft(ids[1:])
        decoder.draft(ids[:1])  # not asked for
        found = states.take()
        states.watch()
        decoder.draft(ids)
        assert torch.equal(found, states.take()[1:])


@pytest.fixture
def compiled() -> list[Any]:
    """Compiled as a wrapper and in place; neither model is called."""
    drafts = [related(seed=1, spread=0.05)[1] for _ in range(2)]
    drafts[1].compile()
    return [torch.compile(drafts[0]), drafts[1]]


def test_a_draft_without_a_readable_state_is_refused(stopper: Stopper, compiled: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"NGram.* has none; use a draft model, or a predictor trained without it"):
        stopper.in_loop(NGram())
    for draft in compiled:
        with pytest.raises(UsageError, match="from a compiled draft; pass the model without compiling it"):
            stopper.in_loop(draft)


def test_a_draft_other_than_the_decoders_is_refused(stopper: Stopper, decoder: SpeculativeDecoder) -> None:
    policy: StopPolicy = stopper.in_loop(related(seed=1, spread=0.05)[1])
    with pytest.raises(UsageError, match="the hidden state of another draft; pass it the decoder's own"):
        decoder.generate([[2, 3]], NEW, stop_policy=policy)


@pytest.mark.parametrize(
    ("settings", "holds"), [({}, "none"), ({"hidden": 4}, "another"), ({"hidden": WIDTH, "seed": 1}, "another")]
)
def test_traces_without_that_state_are_refused(
    settings: dict[str, Any], holds: str, trained: Predictor, tmp_path: Path
) -> None:
    given = tiny_traces(tmp_path, problems=8, **settings)
    with pytest.raises(UsageError) as refusal:
        Stopper.fitted(trained, "js", TOKENIZER, given, COSTS, MOST)
    assert str(refusal.value) == (
        f"the predictor reads the draft's hidden state (hidden=8 with seed 0), these traces hold {holds}; collect some "
        "with hidden=8 with seed 0, or use a predictor trained without it"
    )
