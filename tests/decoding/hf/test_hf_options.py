"""`fsd_generate`: options of `generate`, its output and streamers.

Float64 on tiny random models. At a negative threshold the texts are the target's own, so `generate` without
`fsd_generate` gives the expected result.
"""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
    TextStreamer,
)

from fsd_common.errors import UsageError
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.hf import FsdGenerateOutput, check_draft
from fsd_decoding.tree_shape import TreeShape
from support.messages import usage_error
from support.models.hf_pair import (
    DRAFT,
    NEW,
    TARGET,
    EndsOn,
    Fours,
    Penalty,
    allowed,
    batch,
    fsd,
    one,
    plain,
    plain_batch,
    same,
)
from support.models.tiny_models import EOS, word_tokenizer

OPTIONS: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 14, "max_new_tokens": None},
    "one token": {"max_new_tokens": 1},
    "one EOS": {"eos_token_id": 35},
    "several EOS": {"eos_token_id": [28, 35, 9]},
    "pad token": {"pad_token_id": 3},
    "criterion": {"stopping_criteria": StoppingCriteriaList([EndsOn(5)])},
    "criterion that counts": {"stopping_criteria": StoppingCriteriaList([EndsOn(10**6, length=13)])},
    "min_new_tokens": {"min_new_tokens": 9},
    "min_length": {"min_length": 14},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[32], [9, 6], [20, 35]]},
    "sequence_bias": {"sequence_bias": [[[32], -9.0], [[5, 31], -9.0]]},
    "forced_eos_token_id": {"forced_eos_token_id": 7, "eos_token_id": 7},
    "suppress_tokens": {"suppress_tokens": [32, 35, 1]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [32, 20]},
    "length penalty": {"exponential_decay_length_penalty": (2, 1.8)},
    "prefix function": {"prefix_allowed_tokens_fn": allowed},
    "own processor": {"logits_processor": LogitsProcessorList([Penalty()])},
    "two processors": {"logits_processor": LogitsProcessorList([Penalty()]), "repetition_penalty": 1.5},
    "processor and length": {"min_new_tokens": 5, "repetition_penalty": 1.3, "forced_eos_token_id": 7},
}


def test_trees_write_what_generate_gives() -> None:
    tree = TreeShape(top_k=3, nodes=8)
    assert same(fsd(batch(), fsd_tree=tree), plain_batch())
    with pytest.raises(UsageError, match=r"tree is TreeShape.*, and a repetition penalty"):
        fsd(batch(), fsd_tree=tree, repetition_penalty=1.5)


def test_greedy_batches_are_what_generate_gives() -> None:
    assert same(fsd(batch()), plain_batch())
    assert plain_batch()[:, 9:].eq(0).any(), "no row was padded, so padding was not tested"
    assert {int(t) for t in plain_batch()[:, 9:].flatten()} & set(EOS)


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("fsd_draft_length", [1, 3, 8])
@pytest.mark.parametrize("fsd_rule", ["sd", "coupled", "fsd", "fsd-sd", "fsd-coupled", "target"])
def test_every_lossless_rule_gives_what_generate_gives(fsd_rule: str, fsd_draft_length: int) -> None:
    options = {"fsd_threshold": None} if fsd_rule in ("sd", "coupled", "target") else {}
    assert same(fsd(batch(), fsd_rule=fsd_rule, fsd_draft_length=fsd_draft_length, **options), plain_batch())


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_generate_are_honoured(option: str) -> None:
    expected = plain(batch(), **OPTIONS[option])
    assert not same(expected, plain_batch()), "the option changed nothing, so nothing was tested"
    assert same(fsd(batch(), **OPTIONS[option]), expected)


def test_prompts_without_a_mask_or_a_pad_token() -> None:
    for row in batch()["input_ids"]:
        inputs = {"input_ids": row[row != 0][None]}
        assert same(fsd(inputs), plain(inputs))
        assert same(fsd(inputs, eos_token_id=None), plain(inputs, eos_token_id=None))


def test_stop_strings_as_a_criterion() -> None:
    """The tokenizer's first 40 ids are single characters."""
    tokenizer = build_tokenizer(["Ann has 12 apples."], vocab_size=300)
    stop = [str(tokenizer.decode(plain(one())[0, 6:8]))]
    expected = plain(one(), stop_strings=stop, tokenizer=tokenizer)
    assert expected.shape[1] < plain(one()).shape[1]
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, stop)])
    assert same(fsd(one(), stopping_criteria=criteria), expected)
    with pytest.raises(ValueError, match="could not locate a tokenizer"):  # `generate` loses it, see `fsd_generate`
        fsd(one(), stop_strings=stop, tokenizer=tokenizer)


def test_criteria_are_evaluated_token_by_token() -> None:
    class Watch(StoppingCriteria):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            assert scores is None
            self.seen.append(input_ids[0].tolist())
            return torch.zeros(1, dtype=torch.bool)

    watch = Watch()
    options = {"stopping_criteria": StoppingCriteriaList([watch]), "eos_token_id": None, "fsd_threshold": 9.0}
    (text,) = fsd(one(), **options).tolist()
    assert watch.seen == [text[:end] for end in range(5, len(text) + 1)]


# What comes back


def test_output_object_carries_sequences_and_statistics() -> None:
    output = fsd(batch(), return_dict_in_generate=True, fsd_threshold=0.2)
    results = SpeculativeDecoder(TARGET, DRAFT, word_tokenizer()).generate(
        [ids[mask.bool()].tolist() for ids, mask in zip(*batch().values(), strict=True)], NEW, threshold=0.2
    )
    assert isinstance(output, FsdGenerateOutput)
    assert output.rounds is not None
    assert output.rounds.tolist() == [r.rounds for r in results]
    assert output.accepted is not None
    assert output.accepted.tolist() == [r.accepted for r in results]
    assert output.intervals is not None
    assert output.intervals.tolist() == [list(r.interval) for r in results]
    for sequence, result in zip(output.sequences[:, 9:].tolist(), results, strict=True):
        assert sequence[: len(result.tokens)] == result.tokens
    assert same(fsd(batch(), return_dict_in_generate=True).sequences, plain_batch())


def test_thresholds_and_draft_sources_are_used() -> None:
    """At T = ∞ `fsd` accepts everything that is drafted: here always the token 4."""
    output = fsd(one(), draft_model=Fours(), fsd_rule="fsd", fsd_threshold=float("inf"), fsd_draft_length=3)
    assert output[0, 4:7].tolist() == [4, 4, 4]
    assert same(fsd(one(), draft_model=Fours()), plain(one()))


# Streaming


def test_streamers_receive_what_generate_gives_them(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = word_tokenizer()
    shown = []
    for run in (plain, fsd):
        run(one(), streamer=TextStreamer(tokenizer, skip_prompt=False))
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_text_can_be_read_from_another_thread(skip_prompt: bool) -> None:
    tokenizer = word_tokenizer()
    texts = []
    for run in (plain, fsd):
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=skip_prompt, timeout=60)
        Thread(target=run, args=(one(),), kwargs={"streamer": streamer}).start()
        texts.append(list(streamer))
    assert "".join(texts[0]) == "".join(texts[1])
    assert len(texts[1]) > 3, "came in one piece"


def test_a_head_that_is_not_loaded_is_refused_with_the_way_to_load_it() -> None:
    message = usage_error(lambda: check_draft(Eagle("h")))
    assert message == (
        "draft_model is Eagle(source='h', revision=None), which is not loaded; pass Eagle(source='h', "
        "revision=None).load(model)"
    )
