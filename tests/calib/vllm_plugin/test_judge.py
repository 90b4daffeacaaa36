"""Judging of drafted tokens: the right logits are compared, whatever the batch looks like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fsd_calib.vllm_plugin import judge as judging
from fsd_calib.vllm_plugin.certain import accept_certainly
from fsd_calib.vllm_plugin.draft_logits import BufferedDraftLogits, DraftLogits, HostDraftLogits
from fsd_calib.vllm_plugin.judge import Judge, Judged, JudgedTokens, Verification
from fsd_calib.vllm_plugin.on_host import JudgedOnHost, emit
from fsd_common.errors import UsageError
from fsd_decoding import tensors
from fsd_decoding.adaptive import EntropyScaled, Phase, Schedule
from fsd_decoding.divergence import DIVERGENCES, divergence, entropy
from fsd_decoding.policies.threshold import ScalePolicy

VOCABULARY, LENGTH = 7, 3


def drafted(
    names: list[str], seed: int = 0, length: int = LENGTH, buffered: bool = True
) -> tuple[DraftLogits, dict[str, Tensor]]:
    """Logits of drafts as a runner adds them, and by request (L, V)."""
    generator = torch.Generator().manual_seed(seed)
    shape = len(names) + 2, LENGTH, VOCABULARY
    drafts = BufferedDraftLogits(shape, torch.float32, torch.device("cpu")) if buffered else HostDraftLogits(VOCABULARY)
    steps = [3 * torch.randn(len(names), VOCABULARY, generator=generator) for _ in range(length)]
    drafts.begin()
    for step in steps:
        written = step.clone()
        drafts.add(written, changes=True)
        written.fill_(0)
    drafts.end(names)
    return drafts, {name: torch.stack([step[row] for step in steps]) for row, name in enumerate(names)}


def verification(names: list[str], counts: list[int], seed: int = 1) -> tuple[Verification, list[Tensor]]:
    """A step as a runner lays it out: n + 1 rows of logits for each request; and by request (n, V)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(sum(counts) + len(counts), VOCABULARY, generator=generator)
    begins = [sum(counts[:i]) + i for i in range(len(counts))]
    rows = [begin + place for begin, count in zip(begins, counts, strict=True) for place in range(count)]
    places = torch.arange(sum(counts)) + 5
    tokens = torch.randint(VOCABULARY, (sum(counts),), generator=generator, dtype=torch.int32)
    greedy = [True] * len(names)
    step = Verification(names, counts, logits, torch.tensor(rows, dtype=torch.int64), tokens, greedy, places)
    return step, [logits[begin : begin + count] for begin, count in zip(begins, counts, strict=True)]


def judge_raw(judge: Judge, step: Verification, thresholds: list[float]) -> JudgedTokens | None:
    """Judges by a score of raw logits."""
    judged = judge(step, thresholds)
    assert judged is None or isinstance(judged, JudgedTokens)
    return judged


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from([*DIVERGENCES, "js@3"]))
def test_every_token_is_compared_with_its_own_draft(data: st.DataObject, name: str) -> None:
    """Requests may be reordered since they drafted, have fewer tokens than they drafted, or none."""
    names = [f"r{i}" for i in range(data.draw(st.integers(1, 5)))]
    drafts, of = drafted(names, buffered=data.draw(st.booleans()))
    order = data.draw(st.permutations(names))
    counts = data.draw(st.lists(st.integers(0, LENGTH), min_size=len(names), max_size=len(names)))
    thresholds = data.draw(st.lists(st.sampled_from([-1.0, 0.1, 0.4]), min_size=len(names), max_size=len(names)))
    step, targets = verification(order, counts)
    judged = judge_raw(Judge(drafts, name, None), step, thresholds)
    if all(t < 0 for t, count in zip(thresholds, counts, strict=True) if count):
        assert judged is None
        return
    assert judged is not None
    expected = torch.cat([divergence(name, p, of[r][: len(p)]) for r, p in zip(order, targets, strict=True)])
    bounds = torch.tensor([t for t, count in zip(thresholds, counts, strict=True) for _ in range(count)])
    assert torch.allclose(judged.scores, expected, atol=1e-6)
    assert torch.equal(judged.fuzzy, judged.scores <= bounds)


@settings(max_examples=40)
@given(data=st.data())
def test_requests_whose_drafts_are_not_known_are_decoded_exactly(data: st.DataObject) -> None:
    """As one that was not scheduled while others drafted. Those beside them are judged as if they were alone."""
    drafts, of = drafted(["a", "b", "c"], buffered=data.draw(st.booleans()))
    order = data.draw(st.permutations(["a", "x", "b", "y", "c"]))
    counts = data.draw(st.lists(st.integers(0, LENGTH), min_size=5, max_size=5))
    step, targets = verification(order, counts)
    judged = judge_raw(Judge(drafts, "js", None), step, [0.3] * 5)
    expected = [
        divergence("js", p, of[r][: len(p)]) if r in of else torch.full((len(p),), torch.inf)
        for r, p in zip(order, targets, strict=True)
    ]
    fuzzy = torch.cat(expected) <= 0.3
    if judged is None:
        assert not fuzzy.any()
    else:
        assert torch.equal(judged.spread(sum(counts)), fuzzy)
        assert len(judged.fuzzy) == sum(count for name, count in zip(order, counts, strict=True) if name in of)
    accepted = torch.zeros(sum(counts), dtype=torch.bool)
    looked = Judge(drafts, "js", None).of_rejected(step, accepted.tolist(), [0.3] * 5)
    known = [name in of for name, count in zip(order, counts, strict=True) for _ in range(count)]
    assert looked.layout.count == looked.facts.shape[1] == sum(known)
    assert (looked.facts[1] > 0).tolist() == certain_where_accepted(looked, sum(counts))[known].tolist()
    assert_same_round(certain_where_accepted(looked, sum(counts)), fuzzy, counts)


def certain_where_accepted(judged: Judged, total: int) -> Tensor:
    """Returns which tokens of a step are made certain: (total,) bool."""
    logits, drafted = torch.zeros(total, VOCABULARY), torch.zeros(total, dtype=torch.int32)
    judged.accept(logits, drafted)
    return logits[:, 0] > 0


def assert_same_round(accepted: Tensor, expected: Tensor, counts: list[int]) -> None:
    """Both say of every request that the same tokens before the first rejected one are accepted."""
    for one, other in zip(accepted.split(counts), expected.split(counts), strict=True):
        assert one.long().cumprod(0).tolist() == other.long().cumprod(0).tolist()


def test_a_step_after_one_without_drafts_is_decoded_exactly() -> None:
    drafts, _ = drafted(["a", "b"])
    drafts.begin()
    drafts.end(["a", "b"])
    step, _ = verification(["a", "b"], [LENGTH, LENGTH])
    assert Judge(drafts, "js", None)(step, [1.0, 1.0]) is None


def test_more_tokens_than_were_drafted_are_not_judged_by_older_logits() -> None:
    drafts, _ = drafted(["a"], length=2)
    step, _ = verification(["a"], [LENGTH])
    assert Judge(drafts, "js", None)(step, [1.0]) is None


def test_an_infinite_score_or_one_that_is_no_number_is_never_accepted() -> None:
    drafts, _ = drafted(["a"])
    step, _ = verification(["a"], [LENGTH])
    step.logits[0] = torch.nan
    step.logits[1, 0] = -torch.inf
    judged = judge_raw(Judge(drafts, "kl_qp", None), step, [float("1e308")])
    assert judged is not None
    assert judged.fuzzy.tolist() == [False, False, True]


@settings(max_examples=40)
@given(seed=st.integers(0, 1000))
def test_a_schedule_scales_by_positions(seed: int) -> None:
    drafts, _ = drafted(["a"], seed)
    step, _ = verification(["a"], [LENGTH], seed + 1)
    judge = Judge(drafts, "js", Schedule(start=1.0, end=0.0, over=10))
    judged = judge_raw(judge, step, [0.5])
    assert judge.needs_places
    assert judged is not None
    assert judged.fuzzy.tolist() == (judged.scores <= torch.tensor([0.25, 0.2, 0.15])).tolist()


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), of=st.sampled_from(["target", "draft"]))
def test_an_entropy_policy_scales_by_entropies(seed: int, of: Any) -> None:
    drafts, by_request = drafted(["a", "b"], seed)
    step, targets = verification(["b", "a"], [2, 3], seed + 1)
    judged = judge_raw(Judge(drafts, "js", EntropyScaled(1.0, slope=2.0, of=of)), step, [0.1, -1.0])
    logits = torch.cat(targets) if of == "target" else torch.cat([by_request["b"][:2], by_request["a"]])
    bounds = torch.where(torch.arange(5) < 2, 0.1 * torch.exp(2 * (1 - torch.exp(-entropy(logits).double()))), -1.0)
    assert judged is not None
    assert judged.fuzzy.tolist() == (judged.scores <= bounds).tolist()


def phase(inside: float, outside: float) -> Phase:
    made = Phase(inside, outside, 3, 4)
    made.check([], None, "", "")
    return made


@pytest.mark.parametrize("tells_scaled", [False, True])
def test_a_phase_scales_by_what_stands_before_tokens(tells_scaled: bool) -> None:
    drafts, _ = drafted(["a", "b"])
    step, _ = verification(["b", "x", "a"], [2, 1, LENGTH])  # the drafts of x are not known
    inside, policy = torch.tensor([True, False, False, False, True, True]), phase(1.0, 0.25)
    states = torch.where(inside, policy.reading.inside, 0)
    plain = Judge(drafts, "js", None)(step, [0.3] * 3)
    judged = Judge(drafts, "js", policy, tells_scaled)(step._replace(phases=states), [0.3] * 3)
    assert isinstance(plain, JudgedTokens)
    assert isinstance(judged, JudgedTokens)
    scales = torch.where(inside[torch.tensor([0, 1, 3, 4, 5])], 1.0, 0.25)
    told = plain.scores / scales if tells_scaled else plain.scores
    assert torch.allclose(judged.scores.float(), told)
    assert judged.fuzzy.tolist() == (plain.scores <= 0.3 * scales).tolist()


@pytest.mark.parametrize(
    "policy",
    [phase(0.5, -1), Schedule(0.0, 0.5, over=1), EntropyScaled(0.5, 0.0)],
    ids=["phase", "schedule", "entropy"],
)
def test_where_the_scale_is_zero_nothing_is_accepted(policy: ScalePolicy) -> None:
    """Not even where target and draft are the same."""
    drafts, of = drafted(["a"])
    step, _ = verification(["a"], [LENGTH])
    step.logits[:LENGTH] = of["a"]
    step = step._replace(places=torch.arange(LENGTH), phases=torch.tensor([0, 1, 1]))
    for threshold in (0.0, 0.5):
        judged = Judge(drafts, "js", policy)(step, [threshold])
        assert isinstance(judged, JudgedTokens)
        assert judged.scores.max() < 1e-6
        assert (judged.scores == 0).any()
        within = (judged.scores <= threshold).tolist()
        assert judged.fuzzy.tolist() == [within[0] and isinstance(policy, EntropyScaled), *within[1:]]


@pytest.mark.thinned(every=6)
@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
@pytest.mark.parametrize("name", ["js", "doubt", "js@3"])
def test_kernels_find_the_same_in_place_and_by_copies(
    monkeypatch: pytest.MonkeyPatch, order: list[str], name: str
) -> None:
    pytest.importorskip("triton")
    drafts, _ = drafted(["a", "b"])
    step, _ = verification(order, [LENGTH, LENGTH])
    policy = EntropyScaled(1.0, slope=2.0, of="target")
    plain = judge_raw(Judge(drafts, name, policy), step, [0.3, 0.1])
    monkeypatch.setattr(tensors, "INTERPRETED", True)
    fused = judge_raw(Judge(drafts, name, policy), step, [0.3, 0.1])
    assert plain is not None
    assert fused is not None
    assert torch.allclose(plain.scores, fused.scores, atol=1e-6)
    assert torch.equal(plain.fuzzy, fused.fuzzy)


def test_a_draft_over_another_vocabulary_is_refused() -> None:
    drafts, _ = drafted(["a"])
    drafts.begin()
    with pytest.raises(UsageError, match="the draft has 9 logits, the target 7"):
        drafts.add(torch.zeros(1, 9), changes=False)


@settings(max_examples=60)
@given(data=st.data())
def test_divergences_are_computed_only_where_they_decide(data: st.DataObject) -> None:
    """Rounds end where they would if all were known; tokens behind a rejected first one have none, unless few are
    rejected."""
    names = [f"r{i}" for i in range(data.draw(st.integers(1, 4)))]
    drafts, _ = drafted(names, buffered=data.draw(st.booleans()))
    order = data.draw(st.permutations(names))
    counts = data.draw(st.lists(st.integers(1, LENGTH), min_size=len(names), max_size=len(names)))
    likeliest = torch.tensor(data.draw(st.lists(st.booleans(), min_size=sum(counts), max_size=sum(counts))))
    thresholds = data.draw(st.lists(st.sampled_from([-1.0, 0.2, 0.4]), min_size=len(names), max_size=len(names)))
    few = data.draw(st.integers(1, 6))
    step, _ = verification(order, counts)
    judge = Judge(drafts, "js", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "_chunk_rows", lambda logits: few)
        looked = judge.of_rejected(step, likeliest.tolist(), thresholds)
    scores, fuzzy, exact = torch.from_numpy(looked.facts).float()
    assert torch.equal(exact > 0, likeliest)
    whole = judge_raw(judge, step, thresholds)
    if whole is None:
        assert max(thresholds) < 0
        assert not fuzzy.any()
        return
    assert_same_round((fuzzy > 0) | likeliest, whole.fuzzy | likeliest, counts)
    computed = scores < torch.inf
    assert torch.allclose(scores[computed], whole.scores[computed], atol=1e-6)
    parts = list(zip(likeliest.split(counts), whole.fuzzy.split(counts), thresholds, strict=True))
    rejected = [[] if t < 0 else (~each).nonzero().flatten().tolist() for each, _, t in parts]
    if sum(map(len, rejected)) > few:  # the first one of each request, and all others if it passes
        rejected = [
            own if own and passes[own[0]] else own[:1] for own, (_, passes, _) in zip(rejected, parts, strict=True)
        ]
    assert [each.nonzero().flatten().tolist() for each in computed.split(counts)] == rejected


@settings(max_examples=60)
@given(data=st.data(), policy=st.sampled_from([Schedule(1.0, 0.0, over=9), EntropyScaled(1.0, 2.0, of="draft"),
                                               EntropyScaled(1.0, 2.0, of="target")]))  # fmt: skip
def test_policies_scale_on_the_host_as_elsewhere(data: st.DataObject, policy: ScalePolicy) -> None:
    drafts, _ = drafted(["a", "b"], data.draw(st.integers(0, 1000)), buffered=data.draw(st.booleans()))
    step, _ = verification(["b", "a"], [2, 3], data.draw(st.integers(0, 1000)))
    likeliest = torch.tensor(data.draw(st.lists(st.booleans(), min_size=5, max_size=5)))
    judge, thresholds = Judge(drafts, "js", policy, data.draw(st.booleans())), [0.1, 0.5]
    whole, looked = judge_raw(judge, step, thresholds), judge.of_rejected(step, likeliest.tolist(), thresholds)
    assert whole is not None
    scores, fuzzy, _ = torch.from_numpy(looked.facts)
    assert torch.equal(fuzzy > 0, whole.fuzzy & ~likeliest)
    assert torch.allclose(scores[~likeliest], whole.scores[~likeliest].double(), atol=1e-6)


@settings(max_examples=60)
@given(data=st.data())
def test_tokens_made_certain_one_by_one_and_all_together_are_the_same(data: st.DataObject) -> None:
    """Padding, and tokens that a request forbids or that vLLM forces others beside, are left as they are."""
    count = data.draw(st.integers(1, 6))
    tokens = torch.tensor(data.draw(st.lists(st.integers(-1, VOCABULARY - 1), min_size=count, max_size=count)))
    fuzzy = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    logits = torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(3))
    logits[0] = torch.where(torch.arange(VOCABULARY) < 3, -torch.inf, logits[0])
    logits[-1, 5] = data.draw(st.sampled_from([0.5, 1e9]))
    together, single = logits.clone(), logits.clone()
    likely = accept_certainly(together, tokens.int(), fuzzy)
    judged = JudgedOnHost([count], [0], [False] * count)
    judged.fuzzy = fuzzy.nonzero().flatten().tolist()
    judged.accept(single, tokens.int())
    assert torch.equal(together, single)
    assert torch.equal(likely, (logits.argmax(1) == tokens))
    for row, token in enumerate(tokens.tolist()):
        forced = bool(logits[row].max() > 1e8)
        allowed = bool(fuzzy[row]) and token >= 0 and logits[row, max(token, 0)] > -torch.inf and not forced
        assert (int(together[row].argmax()) == token) == (allowed or bool(likely[row]))
        assert bool(together[row].max() > 1e29) == allowed


@settings(max_examples=60)
@given(data=st.data())
def test_a_step_emits_what_is_kept_and_the_targets_token_behind_it(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, LENGTH), min_size=1, max_size=5))
    kept = data.draw(st.lists(st.booleans(), min_size=sum(counts), max_size=sum(counts)))
    tokens, chosen = range(100, 100 + len(kept)), range(500, 500 + len(kept) + len(counts))
    found = iter(emit(counts, tokens, kept, chosen))
    for request, own in enumerate(torch.tensor(kept, dtype=torch.bool).split(counts)):
        begin, number = sum(counts[:request]), int(own.long().cumprod(0).sum())
        expected = [*tokens[begin : begin + number], chosen[begin + request + number]]
        assert next(found) == expected + [-1] * (max(counts) - number)


def test_a_token_that_vllm_forces_is_not_replaced() -> None:
    """vLLM ends a thinking budget by a logit of 1e9, beside which others keep theirs."""
    logits = torch.zeros(2, VOCABULARY)
    logits[0, 3] = 1e9
    accept_certainly(logits, torch.tensor([5, 5]), torch.tensor([True, True]))
    assert logits.argmax(1).tolist() == [3, 5]
