"""Beams of `generate` of transformers: they are those of `generate_beams`, and losslessly its own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import StoppingCriteriaList, StopStringCriteria

from fsd_common.errors import UsageError
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.hf import FsdGenerateOutput
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.calibration.profiles import profile
from support.messages import usage_error
from support.models.hf_pair import DRAFT, NEW, TARGET, EndsOn, batch, fsd, one, plain, same
from support.models.tiny_models import VOCABULARY, word_tokenizer

CHARACTERS = build_tokenizer(["Ann has 12 apples."], vocab_size=300)  # the first 40 ids are single characters
FUZZY: dict[str, Any] = {"fsd_threshold": 0.05, "fsd_draft_length": 3}


def prompts() -> list[list[int]]:
    inputs = batch()
    return [ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]


def new_tokens(sequences: torch.Tensor, prompt: int) -> list[list[int]]:
    """The new tokens of each row, without padding."""
    return [[token for token in row if token] for row in sequences[:, prompt:].tolist()]


@pytest.mark.parametrize(
    "given", [{}, {"num_return_sequences": 2}, {"length_penalty": 3.0}, {"early_stopping": True}], ids=str
)
def test_lossless_ones_are_those_of_transformers(given: dict[str, Any]) -> None:
    given |= {"num_beams": 3, "pad_token_id": 3}  # with pad token 0 transformers pads beams with EOS
    assert same(fsd(batch(), **given), plain(batch(), **given))


def test_fuzzy_ones_are_those_of_generate_beams() -> None:
    found = fsd(batch(), num_beams=3, num_return_sequences=3, fsd_beam_width=4, return_dict_in_generate=True, **FUZZY)
    decoder = SpeculativeDecoder(TARGET, DRAFT, word_tokenizer())
    results = decoder.generate_beams(prompts(), 3, NEW, width=4, depth=3, threshold=0.05, batch_size=6)
    beams = [beam for result in results for beam in result.beams]
    own = [beam.tokens if beam.eos is None else [*beam.tokens, beam.eos] for beam in beams]
    assert new_tokens(found.sequences, batch()["input_ids"].shape[1]) == own
    assert isinstance(found, FsdGenerateOutput)
    assert found.rounds is not None
    assert found.intervals is not None
    assert found.rounds.tolist() == [result.rounds for result in results]
    assert [tuple(row) for row in found.intervals.tolist()] == [result.interval for result in results]
    assert sum(result.kept for result in results), "T kept nothing, so nothing fuzzy was compared"


def test_drawn_ones_depend_on_the_seed_of_torch() -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        found: torch.Tensor = fsd(batch(), num_beams=3, do_sample=True, top_k=0, fsd_rule="coupled", fsd_threshold=None)
        return found

    assert same(drawn(1), drawn(1))
    assert not same(drawn(1), drawn(2))


def test_stop_strings_end_them() -> None:
    tokenizer, given = CHARACTERS, {"num_beams": 2, "num_return_sequences": 2}
    whole = new_tokens(fsd(one(), **given), 4)
    word = str(tokenizer.decode([whole[0][3]]))
    stops = StoppingCriteriaList([StopStringCriteria(tokenizer, [word])])
    cut = fsd(one(), **given, stopping_criteria=stops, fsd_tokenizer=tokenizer)
    assert same(cut, plain(one(), **given, stopping_criteria=stops))
    assert new_tokens(cut, 4) != whole


def of_beams(changes: dict[str, Any] | None = None) -> ThresholdProfile:
    values: dict[str, Any] = {
        "tokenizer": tokenizer_fingerprint(word_tokenizer()), "dtype": "float64", "prompt": None, "draft_length": 3,
        "threshold": 0.05, "beams": {"number": 3, "width": 4, "answer": "best"},
    }  # fmt: skip
    for role, model in (("target", TARGET), ("draft", DRAFT)):
        values |= {f"{role}.fingerprint": model_fingerprint(model), f"{role}.vocab_size": VOCABULARY}
        values |= {f"{role}.dtype": "float64"}
    return profile(values | (changes or {}))


def test_a_profile_sets_their_width_and_depth() -> None:
    own: dict[str, Any] = {"num_beams": 3, "fsd_threshold": None, "fsd_profile": of_beams()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = fsd(batch(), **own)
    assert same(found, fsd(batch(), num_beams=3, fsd_beam_width=4, **FUZZY))
    with pytest.warns(UserWarning, match="width is 5 instead of 4: the certificate of .* does not apply"):
        fsd(batch(), **own, fsd_beam_width=5)
    with pytest.warns(UserWarning, match="beams is 2 instead of 3, width is 4 instead of 4|beams is 2 instead of 3"):
        fsd(batch(), **own | {"num_beams": 2})
    with pytest.warns(UserWarning, match="a profile certifies single texts; nothing certifies these beams"):
        fsd(batch(), **own | {"fsd_profile": of_beams({"beams": None})})
    voted = own | {"fsd_profile": of_beams({"beams.answer": "majority"})}
    with pytest.warns(UserWarning, match="texts returned of a prompt are 1 instead of the 3 that vote: the cert"):
        fsd(batch(), **voted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fsd(batch(), **voted, num_return_sequences=3)
    message = usage_error(lambda: fsd(batch(), **own | {"num_beams": 1}))
    assert message.startswith("the profile of 'arithmetic' is of 3 beams, which generate(num_beams=1) does not decode")


def test_a_profile_sets_how_they_are_drawn() -> None:
    drawn = of_beams({"rule": "fsd-sd", "beams.replacement": True})
    torch.manual_seed(1)
    found = fsd(batch(), num_beams=3, do_sample=True, top_k=0, fsd_threshold=None, fsd_profile=drawn)
    torch.manual_seed(1)
    given: dict[str, Any] = {"seed": int(torch.randint(2**63 - 1, ())), "rule": "fsd-sd", "replacement": True}
    results = SpeculativeDecoder(TARGET, DRAFT, word_tokenizer()).generate_beams(
        prompts(), 3, NEW, 1.0, width=4, depth=3, threshold=0.05, batch_size=6, **given
    )
    best = [result.beams[0] for result in results]
    own = [beam.tokens if beam.eos is None else [*beam.tokens, beam.eos] for beam in best]
    assert new_tokens(found, batch()["input_ids"].shape[1]) == own


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("fsd_beam_width is of beams, and num_beams is 1", {"num_beams": 1, "fsd_beam_width": 4}),
        ("width is 2; it must be at least the number of beams, 3", {"fsd_beam_width": 2}),
        ("EndsOn is given, by which beams do not end", {"stopping_criteria": StoppingCriteriaList([EndsOn(5)])}),
        (r"eos_token_id is \[35\], and beams end with", {"eos_token_id": 35}),
        ("eos_token_id is None, and beams end with", {"eos_token_id": None}),
        (
            "a stop string is given without fsd_tokenizer",
            {"stopping_criteria": StoppingCriteriaList([StopStringCriteria(CHARACTERS, ["3"])])},
        ),
        ("a repetition penalty or logits processors", {"repetition_penalty": 1.5}),
    ],
)
def test_what_beams_do_not_do_is_refused(message: str, call: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        fsd(batch(), **{"num_beams": 3} | call)
