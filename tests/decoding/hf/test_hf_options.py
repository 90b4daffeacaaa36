"""Options of `generate` of transformers: those that are honoured, and those that are refused with the way out."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
    TextStreamer,
)

from fsd_common.errors import NumericalError, UsageError
from fsd_data.tokenizer import build_tokenizer
from fsd_decoding import adaptive
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import Eagle
from fsd_decoding.hf import FsdGenerateOutput, check_draft
from fsd_decoding.models.forward import cache_argument
from fsd_decoding.tree_shape import TreeShape
from support.messages import usage_error
from support.models.hf_pair import (
    DRAFT,
    LOSSLESS,
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
from support.models.tiny_models import EOS, VOCABULARY, llama, word_tokenizer

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


def test_a_t_by_phase_is_followed_by_the_tokens_of_a_prompt_and_of_the_text() -> None:
    """Markers that are ids need no tokenizer; texts need one."""
    (loose,), (strict,) = (fsd(one(), fsd_threshold=threshold).tolist() for threshold in (0.4, -1.0))
    apart = next(place for place in range(len(loose)) if loose[place] != strict[place])
    assert apart > 4
    for end, text in ((39, loose), (loose[apart - 1], strict)):  # the phase begins within the prompt
        assert fsd(one(), fsd_threshold=adaptive.Phase(0.4, -1, 9, end)).tolist() == [text]
        named = adaptive.Phase(0.4, -1, "w9", f"w{end}")
        assert fsd(one(), fsd_threshold=named, fsd_tokenizer=word_tokenizer()).tolist() == [text]
    with pytest.raises(UsageError, match="the marker 'w9' cannot be found without a tokenizer"):
        fsd(one(), fsd_threshold=named)


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


CACHE = cache_argument(TARGET)


def filled_cache() -> DynamicCache:
    cache = DynamicCache(config=TARGET.config)
    TARGET(torch.tensor([[5, 9]]), **{CACHE: cache})
    return cache


HOLE = torch.tensor([[1, 1, 0, 1]])
BAD_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("draft_model is missing", {"draft_model": None}),
    (
        "assistant_model does not reach fsd_generate; pass the model as draft_model=",
        {"draft_model": None, "assistant_model": DRAFT},
    ),
    ("draft_model is 'gpt2'; it must be a loaded causal LM", {"draft_model": "gpt2"}),
    ("contrastive search", {"penalty_alpha": 0.6, "top_k": 4}),
    ("assisted generation", {"prompt_lookup_num_tokens": 3}),
    *(
        (f"{name} is set", {name: True, "return_dict_in_generate": True})
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    ),
    ("synced_gpus is set", {"synced_gpus": True}),
    (f"{CACHE} is given", {CACHE: DynamicCache(config=TARGET.config)}),
    (f"{CACHE} is given", {CACHE: filled_cache()}),
    ("attention_mask hides tokens", {"attention_mask": HOLE}),
    ("attention_mask hides tokens", {"attention_mask": torch.tensor([[1, 1, 1, 0]])}),
    ("prompt 0 is empty", {"attention_mask": torch.zeros(1, 4, dtype=torch.long)}),
    ("position_ids do not count each prompt from 0", {"position_ids": torch.tensor([[3, 4, 5, 6]])}),
    ("UnbatchedClassifierFreeGuidanceLogitsProcessor", {"guidance_scale": 1.5}),
    ("EncoderRepetitionPenaltyLogitsProcessor", {"encoder_repetition_penalty": 1.5}),
    ("unknown rule 'x'", {"fsd_rule": "x"}),
    ("unknown score", {"fsd_score": "x"}),
    ("threshold is NaN", {"fsd_threshold": float("nan")}),
    ("draft_length is 0", {"fsd_draft_length": 0}),
    ("profile 'nowhere' cannot be read", {"fsd_profile": "nowhere", "fsd_threshold": None}),
]


@pytest.mark.parametrize(("message", "call"), BAD_CALLS, ids=[f"{i} {m}" for i, (m, _) in enumerate(BAD_CALLS)])
def test_unsupported_calls_are_refused(message: str, call: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        fsd(one(), **call)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")
def test_a_cache_is_refused_under_its_former_name_too() -> None:
    """From transformers 5.24 on, `generate` takes it as `cache`."""
    with pytest.raises(UsageError, match=f"{CACHE} is given"):
        fsd(one(), past_key_values=DynamicCache(config=TARGET.config))


def test_inputs_without_ids_are_refused() -> None:
    with pytest.raises(UsageError, match="inputs_embeds is given"):
        fsd({"inputs_embeds": TARGET.get_input_embeddings()(torch.tensor([[5, 9]]))})


def test_rows_that_may_differ_need_a_pad_token() -> None:
    class Padless(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return input_ids[:, -1] > 20

    model = llama(seed=1, eos_token_id=None, pad_token_id=None)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    options: dict[str, Any] = {"max_new_tokens": 4, "draft_model": DRAFT} | LOSSLESS
    ids = torch.tensor([[5, 9], [7, 2]])
    assert model.generate(ids, **options).shape == (2, 6)
    assert model.generate(ids, **options, stopping_criteria=StoppingCriteriaList([Padless()])).shape[0] == 2
    with pytest.raises(UsageError, match="2 sequences may differ in length and there is no pad token"):
        model.generate(ids, **options, max_time=1e6)  # rows run out of time at different lengths


def test_encoder_decoders_are_refused() -> None:
    config = BartConfig(vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16,
                        decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2)  # fmt: skip
    model: Any = BartForConditionalGeneration(config)
    with pytest.raises(UsageError, match="BartForConditionalGeneration is an encoder-decoder"):
        model.generate(torch.tensor([[5, 9]]), max_new_tokens=2, draft_model=DRAFT, **LOSSLESS)


def test_broken_logits_are_an_error() -> None:
    broken = llama(seed=1)
    with torch.no_grad():
        broken.model.embed_tokens.weight[9] = float("nan")
    with pytest.raises(NumericalError, match="prompt 0 got logits that are NaN"):
        broken.generate(torch.tensor([[5, 9]]), max_new_tokens=3, draft_model=DRAFT, **LOSSLESS)
