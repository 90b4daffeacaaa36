"""Calibrations whose drafts are EAGLE heads and n-grams, alone and beside draft models, and their profiles."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsd_calib import Eagle, NGram, SpeculativeDecoder, ThresholdProfile, TreeShape, calibrate
from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.report.console import usage
from fsd_calib.vllm_plugin.engine_checks import check_profile
from fsd_common.errors import UsageError
from fsd_decoding.profile.drafts import draft_of, info_of
from fsd_decoding.profile.parts import ModelInfo
from support.calibration.fixed_speeds import fix_speeds
from support.calibration.profiles import profile, values
from support.messages import usage_error
from support.models import tiny_calibration
from support.models.tiny_heads import eagle1, eagle1_files, written
from support.models.tiny_models import llama, word_tokenizer

SHAPE = TreeShape(2, 4)


def target() -> Any:
    return tiny_calibration.far_apart()[0]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("heads") / "head", eagle1_files(eagle1(target()), target()))


def run(folder: Path, drafts: Any, **settings: Any) -> ThresholdProfile:
    easy: dict[str, Any] = {"serve_batch": 8, "draft_length": (2, 4), "score": "js", "trials": 6}
    pair = target(), drafts
    return tiny_calibration.run(folder / "out", folder / "cache", pair=pair, **{"min_acc": 0.5, **easy, **settings})


def drafting(changes: dict[str, Any]) -> ThresholdProfile:
    """A profile of another draft."""
    return profile({"draft": values()["draft"] | changes})


def follow(made: ThresholdProfile, draft: Any) -> SpeculativeDecoder:
    """A decoder of a profile, where a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return SpeculativeDecoder.from_pretrained(target(), draft, profile=made, tokenizer=word_tokenizer())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_head_alone_is_searched_certified_and_followed(
    head: Path, temperature: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 2.0)
    made = run(tmp_path, Eagle(head), tree=(None, SHAPE), temperature=temperature)
    assert made.certificate.certified
    assert (made.draft.kind, made.draft.id) == ("eagle", str(head))
    assert ThresholdProfile.load(tmp_path / "out") == made
    decoder = follow(made, draft_of(made.draft))
    assert decoder.generate(["w20 w30"], 12)[0].drafted > 0
    other = written(tmp_path / "other", eagle1_files(eagle1(llama(seed=9)), target()))
    (other / "config.json").write_text(json.dumps(json.loads((head / "config.json").read_text()) | {"rope_theta": 9.0}))
    with pytest.raises(UsageError, match=r"the profile's draft is .* with fingerprint .*; load that model"):
        follow(made, Eagle(other))
    with pytest.raises(UsageError, match=r"calibrated with the EAGLE head .*, but this draft is LlamaForCausalLM"):
        follow(made, llama(seed=2, layers=1))


@pytest.mark.slow
def test_models_heads_and_n_grams_are_compared_in_one_search(
    head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_speeds(monkeypatch, 2.0)
    model = llama(seed=2, layers=1)
    model.config._name_or_path = "small"
    drafts: Sequence[Any] = [NGram(), Eagle(head), model]
    settings: dict[str, Any] = {"tree": (None, SHAPE), "pareto": True, "min_acc": None, "trials": 16}
    front = run(tmp_path, drafts, **settings)
    kinds = {info.kind for info in (front.draft, *front.other_drafts)}
    assert kinds == {"model", "eagle", "ngram"}
    tried = {point.setting.draft or front.draft.id for point in front.curve if point.setting.threshold is not None}
    assert len(tried) > 1
    again = run(tmp_path, drafts[::-1], **settings)  # whatever their order
    assert again.effort is not None
    assert again.effort.total.decoded == 0
    assert again.curve == front.curve


@pytest.mark.slow
def test_an_n_gram_draft_is_followed_from_its_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, 2.0)
    made = run(tmp_path, NGram(order=2))
    assert (made.draft.kind, made.draft.id) == ("ngram", "NGram(order=2)")
    assert draft_of(made.draft) == NGram(order=2)
    follow(made, draft_of(made.draft)).generate(["w20 w30"], 12)
    with pytest.raises(UsageError, match="the profile's draft is 'NGram"):
        follow(made, NGram())


@pytest.mark.slow
def test_workers_load_heads_and_n_grams_by_name(head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get paths alone, and decode with the drafts that this process decodes with."""
    fix_speeds(monkeypatch, 2.0)
    loaded, drafts = target(), [NGram(), Eagle(head)]
    folder = tmp_path / "target"
    loaded.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    made = tiny_calibration.run(
        tmp_path / "out", tmp_path / "cache", pair=(str(folder), drafts), workers=2, min_acc=0.5, trials=4,
        draft_length=3, score="js", serve_batch=8,
    )  # fmt: skip
    assert made.certificate.certified


def test_records_of_drafts_are_read_back(head: Path) -> None:
    loaded = target()
    found = info_of(Eagle(head).load(loaded), loaded)
    assert (found.kind, found.id, found.vocab_size) == ("eagle", str(head), 40)
    assert draft_of(ModelInfo.model_validate(found.model_dump())) == Eagle(str(head))
    halved = info_of(Eagle(head).load(target().bfloat16()), loaded)
    again = info_of(Eagle(head).load(target().bfloat16().float()), loaded)
    assert (halved.fingerprint, halved.dtype) == (again.fingerprint, "bfloat16")  # so that a dtype is told as such
    for ngram in (NGram(), NGram(order=5)):
        assert draft_of(info_of(ngram, loaded)) == ngram
    model = found.model_copy(update={"id": "small", "kind": "model"})
    assert draft_of(model) == "small"


def test_a_corpus_is_in_no_profile() -> None:
    info = drafting({"kind": "ngram", "id": "NGram(corpus=0123456789abcdef)"}).draft
    assert "does not hold a corpus; give NGram with that corpus" in usage_error(lambda: draft_of(info))


@pytest.mark.parametrize(
    ("draft", "named", "imported"),
    [
        ({"kind": "eagle", "id": "/a/head"}, "Eagle('/a/head')", "import Eagle, SpeculativeDecoder"),
        ({"kind": "ngram", "id": "NGram(order=4)"}, ", NGram(order=4),", "import NGram, SpeculativeDecoder"),
        ({}, "'big', 'small'", "import SpeculativeDecoder"),
    ],
)
def test_what_reports_print_decodes_with_the_draft(draft: dict[str, Any], named: str, imported: str) -> None:
    text = usage(drafting(draft), Path("profile.json"))
    assert named in text
    assert imported in text


def test_vllm_refuses_profiles_of_other_drafts() -> None:
    check_profile(drafting({"kind": "eagle", "id": "/a/head"}))
    with pytest.raises(UsageError, match=r"the n-gram draft 'NGram.+', and vLLM follows profiles of"):
        check_profile(drafting({"kind": "ngram", "id": "NGram()"}))


class Own:
    def drafter(self, rows: int, slots: int, vocabulary: int) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("draft", "settings", "named"),
    [
        (Own(), {}, "Eagle(…) of a folder or hub id, NGram(…), or drafter_named"),
        (NGram(), {"predictor": "auto"}, "the draft is NGram(), and a predictor ends chains of draft models early"),
        (["a", Eagle("b")], {"threshold_policy": "schedule"}, "how fast drafts by it are with policy schedule is not"),
        (NGram(), {"engine": "vllm"}, "which loads drafters itself, and the draft is NGram(): give a model, or a head"),
    ],
    ids=["of the user", "predictor", "policy", "vLLM"],
)
def test_what_such_drafts_do_not_go_with_is_refused_before_anything_is_loaded(
    draft: Any, settings: dict[str, Any], named: str
) -> None:
    message = usage_error(lambda: calibrate("arithmetic", target="nowhere", draft=draft, min_acc=0.9, **settings))
    assert named in message


def test_a_file_repeats_what_drafts(head: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"task": "arithmetic", "head": str(head), "drafter": ["eagle", "ngram"]}))
    found = read_run_file(file)
    assert (found.job["head"], found.job["drafter"]) == ((str(head),), ("eagle", "ngram"))


def test_options_of_the_target_are_not_for_its_head(head: Path, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    target().save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    both = {"model_kwargs": {"attn": "eager"}, "draft_model_kwargs": {"attn": "eager"}}  # as commands pass them
    decoder = SpeculativeDecoder.from_pretrained(folder, Eagle(head), **both)  # type: ignore[arg-type]
    assert decoder.target.config._attn_implementation == "eager"
    for own, named in (({"attn": "sdpa"}, "attn"), ({"revision": "main"}, "revision")):
        loading = partial(SpeculativeDecoder.from_pretrained, folder, Eagle(head), draft_model_kwargs=own)
        message = usage_error(loading)
        assert message.startswith(f"{named} of the draft is given, and the draft is Eagle(")
        assert message.endswith("which is not loaded as a model is; leave that out")


def test_a_folder_has_no_revisions(head: Path) -> None:
    message = usage_error(lambda: Eagle(head, "main").load(target()))
    assert "its revision is 'main', and a local folder has none; leave the revision out, or give a hub id" in message
