"""Decoding through the cache: the same decodings, whatever part of them was there before. Tiny models, float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch

from fsd_calib.measuring.cache_key import CacheKeys
from fsd_calib.measuring.configuration import Configuration
from fsd_calib.measuring.evaluator import CachedDecoder, Evaluator
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.progress import Advance
from fsd_calib.tasks import Task
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.errors import UsageError
from fsd_decoding.sampling import Sampling
from support.tiny_models import word_tokenizer
from support.tiny_pair import related, tiny_decoder
from support.tiny_task import TinyTask, tiny_task

FUZZY = Configuration("fsd-coupled", "js", 4, 0.1)
WARM = Sampling(0.9)


def task(**settings: Any) -> Task:
    return cast(Task, tiny_task(24, **settings))


def decode(
    store: ResultCache, decoder: SpeculativeDecoder | None = None, task_: Task | None = None, **settings: Any
) -> CachedDecoder:
    return CachedDecoder(decoder or tiny_decoder(), task_ or task(), store, **{"batch_size": 8, **settings})


def sampled(seed: int = 0) -> SpeculativeDecoder:
    return SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), seed=seed, sampling=WARM)


class Noting:
    """Progress that notes titles, totals and what was advanced; `most`: interrupts then."""

    def __init__(self, most: float = math.inf) -> None:
        self.steps: list[list[Any]] = []
        self._most = most

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        noted: list[Any] = [title, total, 0]
        self.steps.append(noted)

        def advance(done: int) -> None:
            noted[2] += done
            if noted[2] >= self._most:
                raise KeyboardInterrupt

        yield advance


@pytest.mark.parametrize(
    ("rule", "decoder"),
    [("fsd-coupled", tiny_decoder()), *((rule, sampled()) for rule in ("fsd", "fsd-sd", "typical", "ensemble"))],
    ids=lambda value: value if isinstance(value, str) else "greedy" if value.sampling.greedy else "sampled",
)
def test_what_was_cached_before_changes_nothing(rule: str, decoder: SpeculativeDecoder) -> None:
    """Thresholds up and down with one cache that holds more and more, against decoding each anew."""
    reused = 0
    with ResultCache(None) as store:
        for t in (0.1, 0.3, -1.0, 0.1):
            configuration = Configuration(rule, "js", 4, t)
            cached, problems = decode(store, decoder), task().problems
            found = [*cached(configuration, problems[5:12]), *cached(configuration, problems)]
            with ResultCache(None) as empty:
                anew = decode(empty, decoder, batch_size=5)(configuration, problems)
            assert found == [*anew[5:12], *anew]
            assert (cached.decoded + cached.reused, cached.decoded_tokens + cached.reused_tokens) == (
                len(found), sum(d.tokens for (d,) in found),
            )  # fmt: skip
            reused += cached.reused - 7  # more than the seven asked for twice
    assert reused >= 24  # at least what was asked for twice at 0.1


def test_it_decodes_for_a_bench_and_grades_anew() -> None:
    with ResultCache(None) as store:
        first = Evaluator(decode(store), task().problems, "tuning").measure(FUZZY)

        class Mended(TinyTask):
            def grade(self, problem: Any, text: str) -> bool:
                return not super().grade(problem, text)

        mended = cast(Task, Mended(**{f.name: getattr(task(), f.name) for f in dataclasses.fields(TinyTask)}))
        cached = decode(store, task_=mended)
        second = Evaluator(cached, mended.problems, "tuning").measure(FUZZY)
        assert (first.correct != second.correct).all()
        assert (cached.decoded, cached.reused, cached.reused_tokens) == (0, 24, first.tokens)
    assert 0 < first.accuracy < 1


def test_seeds_are_the_decoders_and_those_after_it() -> None:
    with ResultCache(None) as store:
        cached = decode(store, sampled(seed=3), seeds=3)
        found = cached(FUZZY, task().problems)
        assert cached.decoded == 72
        for column, seed in enumerate((3, 4, 5)):
            alone = decode(store, sampled(seed))
            assert alone(FUZZY, task().problems) == [(seeds[column],) for seeds in found]
            assert alone.decoded == 0
            texts = sampled(seed).generate(
                [p.prompt for p in task().problems], 12, rule="fsd-coupled", threshold=0.1, draft_length=4,
                ids=[p.id for p in task().problems],
            )  # fmt: skip
            assert [r.text for r in texts] == [seeds[column].text for seeds in found]
        assert len({seeds[0].text == seeds[1].text for seeds in found}) == 2  # noise does differ


def test_greedy_decoding_has_one_seed_whichever_it_is() -> None:
    with ResultCache(None) as store:
        assert {len(seeds) for seeds in decode(store, seeds=3)(FUZZY, task().problems)} == {1}
        again = decode(store, tiny_decoder(seed=9))
        again(FUZZY, task().problems)
        assert (again.decoded, again.reused) == (0, 24)


def test_progress_is_shown_of_what_is_decoded_alone() -> None:
    noting = Noting()
    with ResultCache(None) as store:
        cached = decode(store, sampled(), progress=noting, seeds=2)
        for first in (10, 24, 24):
            cached(FUZZY, task().problems[:first])
    assert noting.steps == [[str(FUZZY), 20, 20], [str(FUZZY), 28, 28]]


def test_what_was_finished_before_an_interrupt_is_kept() -> None:
    with ResultCache(None) as store:
        with pytest.raises(KeyboardInterrupt):
            decode(store, progress=Noting(most=5))(FUZZY, task().problems)
        resumed = decode(store)
        resumed(FUZZY, task().problems)
        assert (resumed.decoded, resumed.reused) == (19, 5)


# --- keys -------------------------------------------------------------------------------------------------


def keyed(
    configuration: Configuration = FUZZY, decoder: SpeculativeDecoder | None = None, seed: int = 0, **settings: Any
) -> str:
    return CacheKeys(decoder or tiny_decoder(), task(**settings)).of(configuration, seed).json


def made(target: Any = None, draft: Any = None, **settings: Any) -> SpeculativeDecoder:
    pair = related(seed=1, spread=0.05)
    return SpeculativeDecoder(target or pair[0], draft or pair[1], word_tokenizer(), **settings)


def other(role: int, dtype: torch.dtype = torch.float64, by: float = 1.1) -> Any:
    """The pair's target or draft with one tensor changed."""
    model = related(seed=1, spread=0.05)[role].to(dtype)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(by)
    return model


def test_whatever_decides_a_text_changes_the_key() -> None:
    changed = [
        keyed(),
        keyed(dataclasses.replace(FUZZY, rule="fsd")),
        keyed(dataclasses.replace(FUZZY, divergence="tv")),
        keyed(dataclasses.replace(FUZZY, draft_length=5)),
        keyed(decoder=made(other(0))),
        keyed(decoder=made(draft=other(1))),
        keyed(decoder=made(*(other(i, torch.float32, 1.0) for i in range(2)))),
        keyed(decoder=made(draft=NGram())),
        keyed(decoder=made(on="processed")),
        keyed(decoder=made(within_support=True)),
        keyed(decoder=made(sampling=WARM)),
        keyed(max_new_tokens=13),
        keyed(stop=("w3",)),
    ]
    assert len(set(changed)) == len(changed)


def test_a_changed_end_of_text_changes_the_key() -> None:
    decoder = tiny_decoder()
    decoder.target.generation_config.eos_token_id = [1]
    assert keyed(decoder=decoder) != keyed()


def test_a_seed_matters_to_sampling_alone() -> None:
    assert keyed(seed=1) == keyed(seed=0)
    assert keyed(decoder=sampled(), seed=1) != keyed(decoder=sampled(), seed=0)


def test_what_has_no_say_changes_no_key() -> None:
    assert keyed(stop=("b", "a")) == keyed(stop=("a", "b", "a"))
    assert keyed(FUZZY.at(0.9)) == keyed(FUZZY.at(0.1))
    alone, sd = Configuration("target", "js", 4), Configuration("sd", "js", 4)
    for configuration in (alone, sd):
        assert keyed(dataclasses.replace(configuration, divergence="tv"), made(on="processed")) == keyed(configuration)
    assert keyed(dataclasses.replace(alone, draft_length=9), made(draft=other(1))) == keyed(alone)
    assert keyed(dataclasses.replace(sd, draft_length=9)) != keyed(sd)


@pytest.mark.parametrize("role", [0, 1])
def test_models_changed_under_a_cache_are_decoded_anew(role: int) -> None:
    with ResultCache(None) as store:
        decode(store)(FUZZY, task().problems)
        models: list[Any] = [None, None]
        models[role] = other(role)
        changed = decode(store, made(*models))
        found = changed(FUZZY, task().problems)
        assert (changed.decoded, changed.reused) == (24, 0)
        with ResultCache(None) as empty:
            assert found == decode(empty, made(*models))(FUZZY, task().problems)


def test_a_threshold_and_a_rule_that_do_not_fit_are_refused() -> None:
    for configuration, message in (
        (Configuration("sd", "js", 4, 0.1), "rule 'sd' has no threshold, the configuration's is 0.1; drop it"),
        (FUZZY.arm, "rule 'fsd-coupled' needs a threshold, the configuration's is None; give it"),
    ):
        with pytest.raises(UsageError, match=message):
            keyed(configuration)


def test_logits_processors_of_ones_own_are_refused() -> None:
    from transformers import MinLengthLogitsProcessor

    with pytest.raises(UsageError, match="1 logits processors of its own"):
        keyed(decoder=made(sampling=Sampling(processors=(MinLengthLogitsProcessor(3, 1),))))
