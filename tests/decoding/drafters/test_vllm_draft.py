"""What drafts in vLLM alone: how it is named, which names are refused, and what its fingerprint depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsd_calib import SpeculativeDecoder, calibrate
from fsd_decoding.drafters.vllm_draft import VllmDraft, files_fingerprint
from fsd_decoding.profile.drafts import draft_of, kind_of
from support.calibration.profiles import profile
from support.messages import usage_error
from support.models.tiny_models import llama, word_tokenizer

HEAD = {"method": "eagle3", "model": "a/head"}


def test_the_order_of_entries_does_not_matter() -> None:
    backwards = dict(reversed([*HEAD.items(), ("quantization", None)]))
    assert VllmDraft.of(HEAD) == VllmDraft.of(backwards)
    assert VllmDraft.of(HEAD).values == HEAD


def test_a_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert VllmDraft.of({**HEAD, "model": "head"}).values["model"] == str(tmp_path / "head")


def test_a_profile_names_it() -> None:
    named = VllmDraft.of({"method": "mtp"})
    recorded = profile({"draft.kind": "vllm", "draft.id": repr(named)}).draft
    assert draft_of(recorded) == named
    assert kind_of(named) == "vllm"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "a"}, "speculative_config has the method None; it must be one of draft_model, eagle, eagle3, mtp, "),
        ({"method": "ngram"}, "speculative_config has the method 'ngram'"),
        ({"method": "eagle"}, "speculative_config has the model None; it must be the path or hub id of what drafts"),
        ({"method": "dflash", "model": 3}, "speculative_config has the model 3"),
        ({"method": "eagle", "model": "/no/such"}, "drafter '/no/such' is not a local folder"),
        (
            HEAD | {"num_speculative_tokens": 3},
            "sets 'num_speculative_tokens', which cannot be set: give ",
        ),
        (HEAD | {"draft_sample_method": "greedy"}, "sets 'draft_sample_method', which cannot be set: it "),
        (HEAD | {"rejection_sample_method": "fly"}, "sets 'rejection_sample_method', which cannot be set: T is "),
        (HEAD | {"parallel_drafting": True}, "sets 'parallel_drafting', which cannot be set: the calibration changes"),
    ],
)
def test_what_names_no_drafter_is_refused(given: dict[str, Any], message: str) -> None:
    assert message in usage_error(lambda: VllmDraft.of(given))


def test_our_engine_says_that_it_cannot_load_it() -> None:
    target = llama(seed=1)
    decoder = SpeculativeDecoder(target, VllmDraft.of(HEAD), word_tokenizer())
    message = usage_error(lambda: decoder.generate([[1, 2, 3]], 4))
    assert message == f"the draft is vLLM's own, {json.dumps(HEAD)}, which our engine cannot load; serve it with vLLM"
    message = usage_error(lambda: calibrate("arithmetic", target, VllmDraft.of(HEAD), min_acc=0.9))
    assert message == f"the draft is vLLM's own, {json.dumps(HEAD)}, and engine is 'fsd-calib'; give engine vllm"


def test_the_fingerprint_is_of_configuration_and_weights(tmp_path: Path) -> None:
    seen = set()
    (tmp_path / "training_args.bin").write_bytes(b"of no use")
    for config, weights, note in (("{}", b"a", "x"), ("{}", b"b", "x"), ('{"a": 1}', b"a", "x"), ("{}", b"a", "y")):
        (tmp_path / "config.json").write_text(config)
        (tmp_path / "model.safetensors").write_bytes(weights)
        (tmp_path / "README.md").write_text(note)
        (tmp_path / "pytorch_model.bin").write_text(note)  # of a format that is not loaded beside the other
        seen.add(files_fingerprint(str(tmp_path)))
    assert len(seen) == 3  # the note does not matter
    assert VllmDraft.of({"method": "mtp"}).fingerprint("of the target") == "of the target"  # in whose files it is
    assert VllmDraft.of(HEAD | {"model": str(tmp_path)}).fingerprint("of the target") in seen
    (tmp_path / "config.json").unlink()
    assert usage_error(lambda: files_fingerprint(str(tmp_path))).endswith("has no config.json; give the folder of one")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").unlink()
    assert "has no weights" in usage_error(lambda: files_fingerprint(str(tmp_path)))
