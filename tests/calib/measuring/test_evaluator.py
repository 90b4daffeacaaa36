"""Decoding through the cache: the same decodings, whichever were cached before. Tiny models, float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch

from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder, Evaluator
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.tasks import Task
from fsd_common.errors import UsageError
from fsd_common.progress.base import Advance
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.profile.setting import Setting
from fsd_decoding.sampling import Sampling
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import related, tiny_decoder
from support.models.tiny_task import TinyTask, tiny_task

FUZZY = Setting("fsd-coupled", "js", 4, 0.1)
WARM = Sampling(0.9)


def task(**settings: Any) -> Task:
    return cast(Task, tiny_task(24, **settings))


def decode(
    store: ResultCache, decoder: SpeculativeDecoder | None = None, task_: Task | None = None, **settings: Any
) -> CachedDecoder:
    of = task_ or task()
    return CachedDecoder(OwnEngine(decoder or tiny_decoder(), of), of, store, **{"batch_size": 8, **settings})


def sampled(seed: int = 0) -> SpeculativeDecoder:
    return SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), seed=seed, sampling=WARM)


class Noting:
    """Progress that records titles, totals and counts; raises KeyboardInterrupt at `most`."""

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


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize(
    ("rule", "decoder"),
    [("fsd-coupled", tiny_decoder()), *((rule, sampled()) for rule in ("fsd", "fsd-sd", "ensemble"))],
    ids=lambda value: value if isinstance(value, str) else "greedy" if value.sampling.greedy else "sampled",
)
def test_cached_results_do_not_change_decodings(rule: str, decoder: SpeculativeDecoder) -> None:
    """Thresholds in any order with one growing cache give the same decodings as without a cache."""
    reused = 0
    with ResultCache(None) as store:
        for t in (0.1, 0.3, -1.0, 0.1):
            setting = Setting(rule, "js", 4, t)
            cached, problems = decode(store, decoder), task().problems
            found = [*cached(setting, problems[5:12]), *cached(setting, problems)]
            with ResultCache(None) as empty:
                fresh = decode(empty, decoder, batch_size=5)(setting, problems)
            assert found == [*fresh[5:12], *fresh]
            assert (cached.decoded + cached.reused, cached.work.decoded_tokens + cached.work.reused_tokens) == (
                len(found), sum(d.tokens for (d,) in found),
            )  # fmt: skip
            reused += cached.reused - 7  # beyond the seven that were requested twice
    assert reused >= 24  # at least those requested twice at 0.1


def test_it_decodes_for_an_evaluator_and_grades_each_time() -> None:
    with ResultCache(None) as store:
        first = Evaluator(decode(store), task().problems, "tuning").measure(FUZZY)

        class Mended(TinyTask):
            def grade(self, problem: Any, text: str) -> bool:
                return not super().grade(problem, text)

        mended = cast(Task, Mended(**{f.name: getattr(task(), f.name) for f in dataclasses.fields(TinyTask)}))
        cached = decode(store, task_=mended)
        second = Evaluator(cached, mended.problems, "tuning").measure(FUZZY)
        assert (first.correct != second.correct).all()
        assert (cached.decoded, cached.reused, cached.work.reused_tokens) == (0, 24, first.tokens)
    assert 0 < first.accuracy < 1


def test_seeds_start_at_the_decoders() -> None:
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
        assert len({seeds[0].text == seeds[1].text for seeds in found}) == 2  # the noise of the seeds differs


def test_greedy_decoding_has_one_seed() -> None:
    with ResultCache(None) as store:
        assert {len(seeds) for seeds in decode(store, seeds=3)(FUZZY, task().problems)} == {1}
        again = decode(store, tiny_decoder(seed=9))
        again(FUZZY, task().problems)
        assert (again.decoded, again.reused) == (0, 24)


def test_progress_counts_decodings_only() -> None:
    noting = Noting()
    with ResultCache(None) as store:
        cached = decode(store, sampled(), progress=noting, seeds=2)
        for first in (10, 24, 24):
            cached(FUZZY, task().problems[:first])
    assert noting.steps == [[str(FUZZY), 20, 20], [str(FUZZY), 28, 28]]


def test_results_finished_before_an_interrupt_are_kept() -> None:
    with ResultCache(None) as store:
        with pytest.raises(KeyboardInterrupt):
            decode(store, progress=Noting(most=5))(FUZZY, task().problems)
        resumed = decode(store)
        resumed(FUZZY, task().problems)
        assert (resumed.decoded, resumed.reused) == (19, 5)


# --- keys -------------------------------------------------------------------------------------------------


def key_json(
    setting: Setting = FUZZY, decoder: SpeculativeDecoder | None = None, seed: int = 0, **settings: Any
) -> str:
    return OwnEngine(decoder or tiny_decoder(), task(**settings)).key(setting, seed).json


def decoder_of(target: Any = None, draft: Any = None, **settings: Any) -> SpeculativeDecoder:
    pair = related(seed=1, spread=0.05)
    return SpeculativeDecoder(target or pair[0], draft or pair[1], word_tokenizer(), **settings)


def changed_model(role: int, dtype: torch.dtype = torch.float64, by: float = 1.1) -> Any:
    """The pair's target or draft with one tensor changed."""
    model = related(seed=1, spread=0.05)[role].to(dtype)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(by)
    return model


def test_all_that_determines_a_text_changes_the_key() -> None:
    changed = [
        key_json(),
        key_json(dataclasses.replace(FUZZY, rule="fsd")),
        key_json(dataclasses.replace(FUZZY, score="tv")),
        key_json(dataclasses.replace(FUZZY, draft_length=5)),
        key_json(decoder=decoder_of(changed_model(0))),
        key_json(decoder=decoder_of(draft=changed_model(1))),
        key_json(decoder=decoder_of(*(changed_model(i, torch.float32, 1.0) for i in range(2)))),
        key_json(decoder=decoder_of(draft=NGram())),
        key_json(decoder=decoder_of(on="processed")),
        key_json(decoder=decoder_of(within_support=True)),
        key_json(decoder=decoder_of(sampling=WARM)),
        key_json(max_new_tokens=13),
        key_json(stop=("w3",)),
    ]
    assert len(set(changed)) == len(changed)


def test_a_changed_end_of_sequence_token_changes_the_key() -> None:
    decoder = tiny_decoder()
    decoder.target.generation_config.eos_token_id = [1]
    assert key_json(decoder=decoder) != key_json()


def test_a_seed_changes_the_key_of_sampling_only() -> None:
    assert key_json(seed=1) == key_json(seed=0)
    assert key_json(decoder=sampled(), seed=1) != key_json(decoder=sampled(), seed=0)


def test_irrelevant_settings_do_not_change_the_key() -> None:
    assert key_json(stop=("b", "a")) == key_json(stop=("a", "b", "a"))
    assert key_json(FUZZY.at(0.9)) == key_json(FUZZY.at(0.1))
    alone, sd = Setting("target", "js", 4), Setting("sd", "js", 4)
    for setting in (alone, sd):
        assert key_json(dataclasses.replace(setting, score="tv"), decoder_of(on="processed")) == key_json(setting)
    assert key_json(dataclasses.replace(alone, draft_length=9), decoder_of(draft=changed_model(1))) == key_json(alone)
    assert key_json(dataclasses.replace(sd, draft_length=9)) != key_json(sd)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("role", [0, 1])
def test_changed_models_are_decoded_again(role: int) -> None:
    with ResultCache(None) as store:
        decode(store)(FUZZY, task().problems)
        models: list[Any] = [None, None]
        models[role] = changed_model(role)
        changed = decode(store, decoder_of(*models))
        found = changed(FUZZY, task().problems)
        assert (changed.decoded, changed.reused) == (24, 0)
        with ResultCache(None) as empty:
            assert found == decode(empty, decoder_of(*models))(FUZZY, task().problems)


def test_a_missing_or_superfluous_threshold_is_refused() -> None:
    for setting, message in (
        (Setting("sd", "js", 4, 0.1), "rule 'sd' has no threshold, and the setting's is 0.1; drop it"),
        (FUZZY.arm, "rule 'fsd-coupled' needs a threshold, and the setting's is None; give one"),
    ):
        with pytest.raises(UsageError, match=message):
            key_json(setting)


def test_custom_logits_processors_are_refused() -> None:
    from transformers import MinLengthLogitsProcessor

    with pytest.raises(UsageError, match="1 custom logits processors"):
        key_json(decoder=decoder_of(sampling=Sampling(processors=(MinLengthLogitsProcessor(3, 1),))))
