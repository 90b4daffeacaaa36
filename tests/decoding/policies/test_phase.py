"""A T by the phase of the text. `test_adaptive_policies.py` has its conformance, `test_markers.py` finds the markers,
and `test_exactness.py` has the distribution of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from conformance.threshold_policies import assert_same, counted
from fsd_collectors.replay import ScaledTraces, quantiles, replay
from fsd_common.errors import UsageError
from fsd_decoding.adaptive import Phase
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.engine.result import Result
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.policies.threshold import TracedText
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import ragged_prompts, tiny_decoder
from support.traces.at_the_limit import is_drafted_as_replayed
from support.traces.memory_traces import MemoryTraces, trace_texts

BEGIN, END = "w1", "w2"  # with which many words begin, so that both come often
NEW, LENGTH = 14, 4
CASES = list(product(("fsd", "fsd-sd", "fsd-coupled"), (0.0, 0.9)))


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return tiny_decoder(draft_length=LENGTH)


def is_inside(tokens: Sequence[int]) -> bool:
    """Whether what follows the tokens is in the phase: by the words of the last one that begins like a marker."""
    marked = [f"w{token}"[:2] for token in tokens if f"w{token}"[:2] in (BEGIN, END) and token > 1]
    return bool(marked) and marked[-1] == BEGIN


def rounds(decoder: SpeculativeDecoder, prompts: list[list[int]], **settings: Any) -> Iterator[tuple[Any, list[int]]]:
    """Yields, one prompt at a time, every round with the text before it."""
    for i, prompt in enumerate(prompts):
        seen: list[tuple[RoundRecord, list[int]]] = []

        def keep(record: RoundRecord, seen: Any = seen) -> None:
            kept = copy(record)
            if record.trees is not None:
                kept.trees = copy(record.trees)
            seen.append((kept, record.emitted[0, : int(record.accepted[0]) + 1].tolist()))

        decoder.generate([prompt], NEW, observer=keep, ids=[i], **settings)
        text = list(prompt)
        for record, emitted in seen:
            yield record, list(text)
            text += emitted


@pytest.mark.parametrize(("rule", "temperature"), CASES)
def test_each_token_is_decided_by_the_t_of_its_phase(
    decoder: SpeculativeDecoder, rule: str, temperature: float
) -> None:
    """Outside as by the exact rule, and inside as at a constant T."""
    policy, outcomes = Phase(0.2, -1, BEGIN, END), set()
    for record, before in rounds(decoder, ragged_prompts(30), rule=rule, temperature=temperature, threshold=policy):
        drafted, verdict = record.proposal.drafted[0].tolist(), record.verdict
        exact = record.exact_verdict.accepted[0].tolist() if rule != "fsd" else [False] * len(drafted)
        for place in range(int(record.decided[0].sum())):
            inside = is_inside(before + drafted[:place])
            near = float(record.proposal.scores[0, place]) <= 0.2
            accepted = bool(verdict.accepted[0, place])
            assert accepted == (exact[place] or (inside and near))
            outcomes.add((inside, near, accepted))
    assert {(True, True, True), (True, False, False), (False, True, False), (False, False, False)} <= outcomes


@pytest.mark.parametrize("shape", [TreeShape(2, 6), TreeShape(3, 12)])
def test_each_node_of_a_tree_has_the_scale_of_what_leads_to_it(decoder: SpeculativeDecoder, shape: TreeShape) -> None:
    seen = set()
    settings: dict[str, Any] = {"threshold": Phase(0.2, 0.05, BEGIN, END), "tree": shape, "temperature": 0.9}
    for record, before in rounds(decoder, ragged_prompts(12), **settings):
        tree, scales = record.trees.tree, record.trees.scales[0].tolist()
        tokens, internal = tree.tokens[0].tolist(), tree.internal[0].tolist()
        for node in (node for node in range(len(scales)) if internal[node]):
            path = [] if node == 0 else [tokens[i] for i in tree.seen[0, node - 1].nonzero().flatten().tolist()]
            inside = is_inside(before + path)
            assert scales[node] == (1.0 if inside else 0.25)
            seen.add((inside, inside == is_inside(before)))
    assert len(seen) == 4  # phases begin and end within trees


@pytest.mark.parametrize("tree", [None, TreeShape(3, 8)], ids=["chains", "trees"])
def test_one_t_in_both_phases_is_a_constant_and_texts_do_not_depend_on_the_batch(
    decoder: SpeculativeDecoder, tree: TreeShape | None
) -> None:
    """Rows are refilled with other texts and drop out, which the memory of phases follows."""
    own, prompts = decoder.with_config(tree=tree), ragged_prompts(40)
    assert own.generate(prompts, NEW, threshold=Phase(0.2, 0.2, BEGIN, END)) == own.generate(
        prompts, NEW, threshold=0.2
    )
    policy = Phase(0.05, 0.4, BEGIN, END)
    together = own.generate(prompts, NEW, threshold=policy, batch_size=40)
    for size in (1, 7):
        for one, other in zip(own.generate(prompts, NEW, threshold=policy, batch_size=size), together, strict=True):
            assert_same(one, other)
    assert [r.tokens for r in together] != [r.tokens for r in own.generate(prompts, NEW, threshold=0.4)]


def test_a_prompt_may_end_within_the_phase(decoder: SpeculativeDecoder) -> None:
    """As one does whose template ends with <think>; what it held before is read too."""
    prompts = [[39, 12, 6], [5, 12, 39, 6]]  # the phase is open, and closed again
    of_phase, loose, strict = (
        counted(decoder.generate(prompts, NEW, threshold=t)) for t in (Phase(0.69, -1, 12, 39), 0.69, -1.0)
    )
    assert loose[0] != strict[0]
    assert loose[1] != strict[1]
    assert of_phase == [loose[0], strict[1]]


@pytest.mark.slow
@pytest.mark.parametrize("tree", [None, TreeShape(3, 8)], ids=["chains", "trees"])
@pytest.mark.parametrize(("rule", "temperature"), CASES)
def test_inside_its_interval_every_t_gives_a_text_again(
    decoder: SpeculativeDecoder, rule: str, temperature: float, tree: TreeShape | None
) -> None:
    """Of 200 texts with two thresholds, or one and the exact rule: five of each interval. At its end a text changes."""
    own, prompts, random, rounding = decoder.with_config(tree=tree), ragged_prompts(200), Random(1), 1e-9
    for policy in (Phase(0.2, -1, BEGIN, END), Phase(0.05, 0.2, BEGIN, END)):
        settings = {"temperature": temperature, "rule": rule, "batch_size": 200}

        def at(thresholds: list[float], policy: Phase = policy, settings: Any = settings) -> list[Result]:
            return own.generate(prompts, NEW, threshold_policy=policy, threshold=thresholds, **settings)

        was = at([0.2] * 200)
        ends = [(max(r.interval[0], -0.1), min(r.interval[1], 2.0)) for r in was]
        for _ in range(5):
            for one, other in zip(
                at([random.uniform(lo + rounding, hi - rounding) for lo, hi in ends]), was, strict=True
            ):
                assert_same(one, other)
        beyond = at([hi + rounding for _, hi in ends])
        bounded = [i for i, r in enumerate(was) if r.interval[1] < 2.0]
        assert len(bounded) > 50
        assert all(beyond[i].interval[0] == pytest.approx(was[i].interval[1], rel=1e-6) for i in bounded)


def traced(
    decoder: SpeculativeDecoder, prompts: list[list[int]]
) -> tuple[MemoryTraces, list[Result], dict[int, TracedText]]:
    """The target's own texts, their traces, and what a policy is told of them."""
    alone = decoder.generate(prompts, NEW, rule="target")
    whole = trace_texts(decoder, prompts, alone, Sampling())
    texts = [
        TracedText(prompt, [*r.tokens, *[0] * (r.emitted - len(r.tokens))])
        for prompt, r in zip(prompts, alone, strict=True)
    ]
    return whole, alone, dict(enumerate(texts))


@pytest.mark.parametrize("rule", ["fsd", "fsd-coupled"])
def test_decoding_equals_replay_until_a_substitution(decoder: SpeculativeDecoder, rule: str) -> None:
    whole, alone, texts = traced(decoder, ragged_prompts(40))
    policy = Phase(0.2, 0.05, BEGIN, END).knowing(texts, word_tokenizer())
    threshold = float(quantiles(ScaledTraces(whole, policy), "js", [0.5])[0])
    decoded = decoder.generate([*ragged_prompts(40)], NEW, rule=rule, threshold=policy.at(threshold))
    same = 0
    for own, real, completion in zip(alone, decoded, whole.completions, strict=True):
        result = replay(ScaledTraces(replace(whole, completions=[completion]), policy), rule, "js", threshold, LENGTH)
        if result.substitutions == 0:
            same += 1
            assert (real.tokens, real.rounds) == (own.tokens, result.rounds)
            assert is_drafted_as_replayed(real, result.drafted, LENGTH, NEW)
    assert 5 < same < len(decoded)


@pytest.mark.parametrize("skipped", [0, 1])
def test_traced_scales_are_those_of_the_texts(decoder: SpeculativeDecoder, skipped: int) -> None:
    """Also where the first tokens have no rows, as in traces of vLLM."""
    whole, _, texts = traced(decoder, ragged_prompts(20))
    policy = Phase(0.2, 0.05, BEGIN, END).knowing(texts, word_tokenizer())
    found, expected = [], []
    rows = [completion[skipped:] for completion in whole.completions if len(completion) > 1]
    for table in MemoryTraces(rows).batches(policy.columns):
        found += policy.traced({name: table[name].to_numpy() for name in policy.columns}).tolist()
    for text, completion in zip(texts.values(), whole.completions, strict=True):
        assert len(text.tokens) == len(completion)
        places = range(skipped, len(completion)) if len(completion) > 1 else ()
        expected += [1.0 if is_inside([*text.prompt, *text.tokens[:place]]) else 0.25 for place in places]
    assert found == expected
    assert {*found} == {1.0, 0.25}
    with pytest.raises(UsageError, match=r"Phase does not know the text of problem 19; pass it to knowing\(\)"):
        policy.knowing({}, word_tokenizer()).traced({"problem": np.array([19]), "position": np.array([0])})


def test_a_profile_names_it_whole() -> None:
    from fsd_decoding.profile.parts import PolicyInfo

    policy = Phase(0.4, 0.1, "<think>", 7)
    info = PolicyInfo.of(policy.identity or "")
    assert str(info) == "phase (begin '<think>', end 7, inside 1, outside 0.25)"
    again = info.at(0.4)
    assert isinstance(again, Phase)
    assert (again.markers, again.scale_inside, again.scale_outside) == (("<think>", 7), 1.0, 0.25)
    assert Phase(0.0, 0.4, "<think>", 7).identity == Phase(-1, 0.2, "<think>", 7).identity != policy.identity
