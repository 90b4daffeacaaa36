"""vLLM's own features, with a profile followed: they do what they do without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams

from support.vllm_async import async_engine
from support.vllm_engine import (
    Recorded,
    arithmetic,
    engine,
    logits,
    own_engine,
    sampling,
    saved,
    served,
    tokenizer,
    worker,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def following(path: str) -> Any:
    return engine(path)


@pytest.fixture(scope="module")
def texts(following: Any) -> list[list[int]]:
    """Texts of 40 problems at the profile's threshold."""
    return served(following, arithmetic(40), sampling())


@pytest.mark.parametrize(
    ("make", "keywords"),
    [
        (engine, {"block_size": 32, "enable_prefix_caching": True}),
        (engine, {"max_num_batched_tokens": 48, "enable_chunked_prefill": True, "max_num_seqs": 8}),
        (async_engine, {}),
    ],
    ids=["prefix caching", "chunked prefill", "asynchronous"],
)
def test_the_way_of_scheduling_does_not_change_texts(
    path: str, texts: list[list[int]], make: Callable[..., Any], keywords: dict[str, Any]
) -> None:
    """Rounds begin elsewhere with chunks of prompts, but where a text's rounds lie does not depend on other texts."""
    llm = make(path, **keywords)
    for _ in range(2):  # the second time prompts are in the prefix cache
        assert served(llm, arithmetic(40), sampling()) == texts


def test_texts_end_before_a_stop_string(following: Any, texts: list[list[int]]) -> None:
    stop = [".", "\n"]
    outputs = following.generate([p.prompt for p in arithmetic(20).problems], sampling(stop=stop), use_tqdm=False)
    for output, whole in zip(outputs, texts, strict=False):
        expected = tokenizer().decode(whole)
        for mark in stop:
            expected = expected.partition(mark)[0]
        assert output.outputs[0].text == expected


def test_logprobs_are_those_of_the_target(following: Any) -> None:
    """Of fuzzily accepted tokens too, which the target finds unlikely."""
    task = arithmetic(12)
    outputs = following.generate([p.prompt for p in task.problems], sampling(logprobs=2), use_tqdm=False)
    unlikely = 0
    for problem, output in zip(task.problems, outputs, strict=True):
        prompt, (completion,) = tokenizer()(problem.prompt)["input_ids"], output.outputs
        log = torch.log_softmax(logits("target", [*prompt, *completion.token_ids]), -1)[len(prompt) - 1 : -1]
        for row, token, found in zip(log, completion.token_ids, completion.logprobs, strict=True):
            assert math.isclose(found[token].logprob, row[token].item(), abs_tol=1e-3)
            assert (found[token].rank == 1) == (int(row.argmax()) == token)
            unlikely += found[token].rank > 1
    assert unlikely > 5


@pytest.mark.parametrize("forbidden", ["bad_words", "allowed_token_ids", "min_tokens"])
def test_what_a_request_forbids_is_not_accepted_by_score(following: Any, forbidden: str) -> None:
    (problem,) = arithmetic(1).problems
    (free,) = following.generate([problem.prompt], sampling({"fsd_threshold": 10.0}), use_tqdm=False)
    tokens = list(free.outputs[0].token_ids)
    word, banned = next((w, t) for t in tokens if (w := _word_of(t)) is not None)
    constraint: Any = {
        "bad_words": [word], "allowed_token_ids": sorted(set(range(979)) - {banned}), "min_tokens": 120,
    }[forbidden]  # fmt: skip
    parameters = sampling({"fsd_threshold": 10.0}, stop=None, **{forbidden: constraint})
    (output,) = following.generate([problem.prompt], parameters, use_tqdm=False)
    found = list(output.outputs[0].token_ids)
    if forbidden == "min_tokens":
        assert len(found) >= 120 > len(tokens)
    else:
        assert banned not in found


def _word_of(token: int) -> str | None:
    """The word that a token is by itself, as a word and as the begin of one; None: it is none."""
    word = tokenizer().decode([token])
    bare = word.strip()
    encoded = [tokenizer()(form, add_special_tokens=False)["input_ids"] for form in (word, bare)]
    fits = word.startswith(" ") and bare.isalpha() and encoded[0] == [token] and len(encoded[1]) == 1
    return bare if fits else None


@pytest.mark.usefixtures("mended_expansion")
def test_seeds_of_exact_samples_are_kept(path: str) -> None:
    """Each of the samples has a seed of its own, and what it draws depends on nothing else, as without a profile."""
    exact = {"fsd": "off"}
    following, own = engine(path), own_engine()
    prompts = [problem.prompt for problem in arithmetic(6).problems]
    wanted = sampling(exact, temperature=1.5, n=4, max_tokens=30, seed=5)

    def samples(llm: Any, asked: SamplingParams, beside: SamplingParams) -> list[list[int]]:
        output, *_ = llm.generate(prompts, [asked, *[beside] * 5], use_tqdm=False)
        return [list(completion.token_ids) for completion in output.outputs]

    found = samples(following, wanted, sampling())
    assert len({tuple(tokens) for tokens in found}) == 4
    unseeded = sampling(exact, temperature=0.7)
    assert found == samples(following, wanted, unseeded) == samples(own, wanted.clone(), unseeded)
    third = sampling(exact, temperature=1.5, max_tokens=30, seed=7)
    assert samples(following, third, sampling()) == [found[2]]
    other = sampling(exact, temperature=1.5, n=4, max_tokens=30, seed=55)
    assert not {*map(tuple, samples(following, other, sampling()))} & {*map(tuple, found)}


@pytest.mark.usefixtures("mended_expansion")
def test_seeds_of_fuzzy_samples_decide_beside_the_noise_of_drafts(path: str) -> None:
    """vLLM draws drafts from torch's global generator, without seeds, so texts repeat where that does, too."""
    llm = engine(path, speculative_config={"draft_sample_method": "probabilistic"})
    (problem,) = arithmetic(1).problems

    def samples(seed: int, noise: int = 0) -> list[tuple[int, ...]]:
        torch.manual_seed(noise)
        parameters = sampling(temperature=2.0, n=8, max_tokens=60, stop=[], ignore_eos=True, seed=seed)
        (output,) = llm.generate([problem.prompt], parameters, use_tqdm=False)
        return [tuple(completion.token_ids) for completion in output.outputs]

    found = samples(5)
    assert len(set(found)) == 8
    assert samples(5) == found
    assert not {*samples(55)} & {*found}
    assert [tokens[0] for tokens in samples(5, noise=1)] == [tokens[0] for tokens in found]  # drawn without a draft


@pytest.mark.usefixtures("mended_expansion")
def test_greedy_sampled_and_exact_requests_share_a_batch(path: str, texts: list[list[int]]) -> None:
    """Greedy texts are the same with sampled ones beside them."""
    llm = engine(path, speculative_config={"draft_sample_method": "probabilistic"})
    task = arithmetic(40)
    kinds = [sampling(), sampling(temperature=0.8), sampling({"fsd": "off"}, temperature=0.8), sampling({"fsd": "off"})]
    found = served(llm, task, [kinds[i % 4] for i in range(40)])
    assert found[::4] == texts[::4]
    assert found[3::4] == served(llm, task, sampling({"fsd": "off"}))[3::4]
    right = sum(
        task.grade(problem, tokenizer().decode(tokens)) for problem, tokens in zip(task.problems, found, strict=True)
    )
    assert right >= 32


def test_finished_requests_are_forgotten(following: Any) -> None:
    served(following, arithmetic(8), sampling())
    following.generate(["What"], sampling(max_tokens=3), use_tqdm=False)  # vLLM tells of the finished at its next step
    assert len(worker(following).serving._requests._described) <= 1


def test_an_aborted_request_leaves_the_others_as_they_are(following: Any, texts: list[list[int]]) -> None:
    core, task = following.llm_engine, arithmetic(6)
    for i, problem in enumerate(task.problems):
        core.add_request(f"abort{i}", problem.prompt, sampling())
    finished: dict[str, list[int]] = {}
    recorded = Recorded(following)
    while core.has_unfinished_requests():
        for output in core.step():
            if output.finished:
                finished[output.request_id] = list(output.outputs[0].token_ids)
        if len(recorded.steps) == 3:
            core.abort_request(["abort2"])
    assert "abort2" not in finished
    assert [finished[f"abort{i}"] for i in (0, 1, 3, 4, 5)] == [texts[i] for i in (0, 1, 3, 4, 5)]


def test_sharded_workers_decide_alike(path: str, texts: list[list[int]], caplog: pytest.LogCaptureFixture) -> None:
    """Two processes hold half of each model; fingerprints are not compared, and that is said."""
    llm = engine(
        path, tensor_parallel_size=2, distributed_executor_backend="mp",
        speculative_config={"draft_tensor_parallel_size": 2},
    )  # fmt: skip
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("fsd:")]
    assert len([line for line in said if "are not compared with the profile's, as it is sharded" in line]) == 2
    assert served(llm, arithmetic(40), sampling()) == texts
    llm.llm_engine.engine_core.shutdown()
