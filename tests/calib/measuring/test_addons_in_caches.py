"""Texts of code that is not of fsd-calib: reused, and decoded by workers, only where it is the same."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fsd_calib.engines.base import DecodingRequest, KeyedPrompt
from fsd_calib.engines.own import OwnEngine, source_of
from fsd_calib.engines.workers import Batch, EngineWorkers, decode_batch
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.result_cache import ResultCache
from fsd_calib.search.space import Space
from fsd_common import addons
from fsd_common.errors import UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.named import drafter_named
from fsd_decoding.profile.setting import Setting
from fsd_decoding.scores import score_named
from fsd_decoding.workers.model_workers import Capacity, Sources, open_workers
from support.models.tiny_calibration import task
from support.models.tiny_pair import saved, tiny_decoder
from support.own_code import on_path
from support.paths import EXAMPLES

SCORE = "new_score:Behind@9"
FUZZY = Setting("new_rule:OneSwap", SCORE, 4, threshold=0.4)


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    with on_path(EXAMPLES):
        yield


def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the score be of another source from now on."""
    known = addons.addon("score", "new_score:Behind")
    assert known is not None
    monkeypatch.setitem(addons._ADDONS, ("score", "new_score:Behind"), replace(known, source="0" * 64))


def test_keys_hold_the_code_that_texts_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, spaces = OwnEngine(tiny_decoder(), task(8)), []
    keys = [engine.key(setting, 0) for setting in (FUZZY, replace(FUZZY, rule="fsd"), FUZZY.under("coupled"))]
    names = [[each["name"] for each in key.engine.get("addons", ())] for key in keys]
    assert names == [["new_rule:OneSwap", "new_score:Behind"], ["new_score:Behind"], []]
    spaces.append(Space(("fsd",), (SCORE, "js"), (4,)).values)
    changed(monkeypatch)
    now = [engine.key(setting, 0) for setting in (FUZZY, replace(FUZZY, rule="fsd"), FUZZY.under("coupled"))]
    assert [one.hash != other.hash for one, other in zip(keys, now, strict=True)] == [True, True, False]
    spaces.append(Space(("fsd",), (SCORE, "js"), (4,)).values)
    assert spaces[0] != spaces[1]
    assert "addons" not in Space(("fsd",), ("js",), (4,)).values


def test_a_drafter_is_part_of_keys_by_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_decoder().target
    made = SpeculativeDecoder(target, drafter_named("new_drafter:Lookup"), tiny_decoder().tokenizer)
    key = OwnEngine(made, task(8)).key(Setting("coupled", "js", 4), 0)
    known = addons.addon("drafter", "new_drafter:Lookup")
    assert known is not None
    assert key.models["draft"] == f"new_drafter:Lookup (no version, {known.source[:16]})"
    monkeypatch.setitem(addons._ADDONS, ("drafter", "new_drafter:Lookup"), replace(known, source="0" * 64))
    assert OwnEngine(made, task(8)).key(Setting("coupled", "js", 4), 0).hash != key.hash


def test_a_cached_text_of_other_code_is_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with ResultCache(None) as store:
        decode = CachedDecoder(OwnEngine(tiny_decoder(), task(8)), task(8), store, 4)
        first = decode(FUZZY, task(8).problems)
        assert decode(FUZZY, task(8).problems) == first
        assert (decode.decoded, decode.reused) == (8, 8)
        changed(monkeypatch)
        decode(FUZZY, task(8).problems)
        assert (decode.decoded, decode.reused) == (16, 8)


def test_a_score_is_pickled_by_its_name() -> None:
    score = score_named(SCORE)
    assert pickle.loads(pickle.dumps(score)) is score
    gone = pickle.dumps(score).replace(b"new_score:", b"old_score:")
    with pytest.raises(UsageError, match="score 'old_score:Behind': there is no module old_score on Python's path"):
        pickle.loads(gone)


def test_a_worker_with_other_code_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny_decoder()
    source = source_of(decoder, task(8), Sources(decoder.target, (decoder.draft,)))
    monkeypatch.setattr(type(source), "engine", lambda self, draft: OwnEngine(decoder, task(8)))
    batch = Batch(
        DecodingRequest(FUZZY, 0, [KeyedPrompt(1, "w21")], 4), (0,), OwnEngine(decoder, task(8)).key(FUZZY, 0)
    )
    finished, error = decode_batch(source, batch)
    assert (len(finished), error) == (1, None)
    changed(monkeypatch)
    with pytest.raises(UsageError, match="other versions of libraries or add-ons, than the process that started it"):
        decode_batch(source, batch)


@pytest.mark.slow
def test_workers_find_the_code_that_this_process_has(tmp_path_factory: pytest.TempPathFactory) -> None:
    target, draft = saved(tmp_path_factory.mktemp("pair"))
    sources = Sources(str(target), (str(draft), drafter_named("new_drafter:Lookup")), "cpu", "float64")
    drafts = {str(draft): str(draft), "new_drafter:Lookup": drafter_named("new_drafter:Lookup")}
    for name, given in drafts.items():
        decoder = SpeculativeDecoder.from_pretrained(str(target), given, device="cpu", dtype="float64")
        engine, setting = OwnEngine(decoder, task(24)), replace(FUZZY, draft=name)
        with open_workers(2, None, sources, Capacity(24, 4)) as workers, ResultCache(None) as store:
            assert workers is not None
            over = EngineWorkers(workers, source_of(decoder, task(24), workers.sources))
            helped = CachedDecoder(engine, task(24), store, 4, drafts={name: engine}, workers=over)
            found = helped(setting, task(24).problems)
        with ResultCache(None) as store:
            alone = CachedDecoder(engine, task(24), store, 4, drafts={name: engine})
            assert alone(setting, task(24).problems) == found
