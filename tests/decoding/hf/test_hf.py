"""`fsd_generate` behind transformers' `generate`: everything that promises, and a clear no to the rest.

Float64 on tiny random models. At a negative threshold the text is the target's own, so `generate` without us
says what is right.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    DynamicCache,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
    TextStreamer,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from fsd_data.tokenizer import build_tokenizer
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import NumericalError, UsageError
from fsd_decoding.hf.generate import FsdGenerateOutput, fsd_generate
from fsd_decoding.hf.sampling import sampling_for
from fsd_decoding.models.fingerprint import model_fingerprint, tokenizer_fingerprint
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from support.profiles import UNCERTIFIED, profile
from support.tiny_models import EOS, VOCABULARY, llama, word_tokenizer

NEW = 16
LOSSLESS: dict[str, Any] = {"custom_generate": fsd_generate, "fsd_threshold": -1.0}
TARGET, DRAFT = llama(seed=1), llama(seed=1)
with torch.no_grad():  # a draft that agrees about as often as not
    _noise = torch.Generator().manual_seed(0)
    for _weight in DRAFT.parameters():
        _weight.mul_(1 + 0.05 * torch.randn(_weight.shape, generator=_noise, dtype=_weight.dtype))


def batch(rows: int = 6, longest: int = 9) -> dict[str, Tensor]:
    """Random prompts of 1 to `longest` tokens, padded on the left."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, VOCABULARY, (rows, longest), generator=generator)
    padding = torch.randint(0, longest, (rows, 1), generator=generator)
    padding[0] = 0
    mask = (torch.arange(longest) >= padding).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def one() -> dict[str, Tensor]:
    return {"input_ids": torch.tensor([[5, 9, 2, 17]])}


def ours(inputs: dict[str, Tensor], **options: Any) -> Any:
    return TARGET.generate(**inputs, **({"max_new_tokens": NEW, "draft_model": DRAFT} | LOSSLESS | options))


def theirs(inputs: dict[str, Tensor], **options: Any) -> Any:
    return TARGET.generate(**inputs, **({"max_new_tokens": NEW} | options))


class EndsOn(StoppingCriteria):
    """Ends a row whose last two tokens add up to a multiple of `divisor`, or at a length, padding included."""

    def __init__(self, divisor: int, length: int = 10**6) -> None:
        self._divisor, self._length = divisor, length

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return (input_ids[:, -2:].sum(1) % self._divisor == 0) | (input_ids.shape[1] >= self._length)


class Against(LogitsProcessor):
    """Disfavours what the text's last token says, and writes into what it is given."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores[torch.arange(len(scores)), (input_ids[:, -1] * 7) % VOCABULARY] -= 3.0
        scores[:, 20:] -= 2.0
        return scores


def allowed(row: int, ids: Tensor) -> list[int]:
    return [t for t in range(2, VOCABULARY) if (t + int(ids[-1]) + row) % 3]


class Fours:
    """A `DraftSource` that drafts nothing but the token 4."""

    def drafter(self, rows: int, slots: int, vocabulary: int) -> Any:
        return self

    def prefill(self, rows: Tensor, tokens: Tensor, until: int) -> None: ...

    identity = "fours"

    def keep(self, rows: Tensor) -> None: ...

    def logits(self, tokens: Tensor, lengths: Tensor, step: int, reach: int) -> Tensor:
        return 9.0 * torch.nn.functional.one_hot(torch.full((len(lengths), 1), 4), VOCABULARY).double()


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
    "own processor": {"logits_processor": LogitsProcessorList([Against()])},
    "two processors": {"logits_processor": LogitsProcessorList([Against()]), "repetition_penalty": 1.5},
    "processor and length": {"min_new_tokens": 5, "repetition_penalty": 1.3, "forced_eos_token_id": 7},
}


@pytest.fixture(scope="module")
def plain() -> Any:
    return theirs(batch())


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def test_greedy_batches_are_what_generate_gives(plain: Tensor) -> None:
    assert same(ours(batch()), plain)
    assert plain[:, 9:].eq(0).any(), "no row was padded, so padding was not tested"
    assert {int(t) for t in plain[:, 9:].flatten()} & set(EOS)


@pytest.mark.parametrize("fsd_draft_length", [1, 3, 8])
@pytest.mark.parametrize("fsd_rule", ["sd", "coupled", "fsd", "fsd-sd", "fsd-coupled", "target"])
def test_every_lossless_rule_does(plain: Tensor, fsd_rule: str, fsd_draft_length: int) -> None:
    given = {"fsd_threshold": None} if fsd_rule in ("sd", "coupled", "target") else {}
    assert same(ours(batch(), fsd_rule=fsd_rule, fsd_draft_length=fsd_draft_length, **given), plain)


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_generate_are_honoured(plain: Tensor, option: str) -> None:
    expected = theirs(batch(), **OPTIONS[option])
    assert not same(expected, plain), "the option changed nothing, so nothing was tested"
    assert same(ours(batch(), **OPTIONS[option]), expected)


def test_prompts_without_a_mask_or_a_pad_token() -> None:
    for row in batch()["input_ids"]:
        inputs = {"input_ids": row[row != 0][None]}
        assert same(ours(inputs), theirs(inputs))
        assert same(ours(inputs, eos_token_id=None), theirs(inputs, eos_token_id=None))


def test_stop_strings_as_a_criterion() -> None:
    """The tokenizer's first 40 ids are single characters."""
    tokenizer = build_tokenizer(["Ann has 12 apples."], vocab_size=300)
    stop = [str(tokenizer.decode(theirs(one())[0, 6:8]))]
    expected = theirs(one(), stop_strings=stop, tokenizer=tokenizer)
    assert expected.shape[1] < theirs(one()).shape[1]
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, stop)])
    assert same(ours(one(), stopping_criteria=criteria), expected)
    with pytest.raises(ValueError, match="could not locate a tokenizer"):  # as the docstring says: it never comes
        ours(one(), stop_strings=stop, tokenizer=tokenizer)


def test_criteria_are_asked_token_by_token() -> None:
    class Watch(StoppingCriteria):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            assert scores is None
            self.seen.append(input_ids[0].tolist())
            return torch.zeros(1, dtype=torch.bool)

    watch = Watch()
    given = {"stopping_criteria": StoppingCriteriaList([watch]), "eos_token_id": None, "fsd_threshold": 9.0}
    (text,) = ours(one(), **given).tolist()
    assert watch.seen == [text[:end] for end in range(5, len(text) + 1)]


# Sampling

WARPERS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "temperature": ({"temperature": 2.5}, [TemperatureLogitsWarper(2.5)]),
    "top_k": ({"temperature": 2.5, "top_k": 6}, [TemperatureLogitsWarper(2.5), TopKLogitsWarper(6)]),
    "top_p": ({"temperature": 3.0, "top_p": 0.8}, [TemperatureLogitsWarper(3.0), TopPLogitsWarper(0.8)]),
    "all": (
        {"temperature": 3.0, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
        [TemperatureLogitsWarper(3.0), TopKLogitsWarper(9), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)],
    ),
}


def law_of_two(prompt: list[int], warpers: LogitsProcessorList) -> np.ndarray[Any, Any]:
    """The target's probabilities of the next two tokens (V, V); after an EOS comes padding."""

    def following(texts: Tensor) -> Tensor:
        return torch.softmax(warpers(texts, TARGET(texts).logits[:, -1]), -1)  # type: ignore[arg-type]

    with torch.no_grad():
        first = following(torch.tensor([prompt]))
        second = following(torch.tensor([[*prompt, token] for token in range(VOCABULARY)]))
    second[list(EOS)] = torch.nn.functional.one_hot(torch.tensor(0), VOCABULARY).double()
    law: np.ndarray[Any, Any] = (first.T * second).numpy()
    return law


@pytest.mark.parametrize("name", WARPERS)
@pytest.mark.parametrize("fsd_rule", ["sd", "fsd-coupled"])
def test_sampled_texts_follow_the_targets_law(fsd_rule: str, name: str) -> None:
    """Chi-square over pairs of tokens; the eight cases together fail by chance at most once in 10^6 runs."""
    options, warpers = WARPERS[name]
    samples, prompt = 3000, [5, 9, 2]
    given: dict[str, Any] = {"top_k": 0, "max_new_tokens": 2, "num_return_sequences": samples, "do_sample": True}
    torch.manual_seed(11)
    found = ours({"input_ids": torch.tensor([prompt])}, **(given | options), fsd_rule=fsd_rule, fsd_draft_length=2)
    law = law_of_two(prompt, LogitsProcessorList(warpers)).flatten() * samples
    counts = np.bincount((found[:, 3] * VOCABULARY + found[:, 4]).numpy(), minlength=law.size)
    assert counts[law == 0].sum() == 0
    common = law >= 5
    pooled = [np.append(x[common], x[~common].sum()) for x in (counts, law)]
    kept = pooled[1] > 1e-9
    assert kept.sum() > 10
    assert chisquare(pooled[0][kept], pooled[1][kept]).pvalue > 1e-6 / 8


def sampled(seed: int | None = None, **options: Any) -> Any:
    if seed is not None:
        torch.manual_seed(seed)
    return ours(batch(), do_sample=True, **options)


def test_manual_seed_decides_sampled_texts() -> None:
    first, again, next_call = sampled(1), sampled(1), sampled()
    assert same(first, again)
    assert not same(first, next_call)
    for processors in ({}, {"no_repeat_ngram_size": 2}):  # all rows at once, and one by one
        assert same(sampled(1, **processors), sampled(1, **processors, fsd_draft_length=2))


def test_greedy_decoding_draws_nothing() -> None:
    before = torch.get_rng_state()
    ours(batch())
    assert same(torch.get_rng_state(), before)


@pytest.mark.parametrize("processors", [{}, {"no_repeat_ngram_size": 3}])
def test_returned_sequences_differ_and_stay_with_their_prompt(processors: dict[str, Any]) -> None:
    inputs = batch()
    found = sampled(1, num_return_sequences=3, temperature=4.0, eos_token_id=None, **processors).view(6, 3, -1)
    for prompt, texts in zip(inputs["input_ids"], found, strict=True):
        assert (texts[:, :9] == prompt).all()
        assert len({tuple(text.tolist()) for text in texts}) == 3


PROCESSORS = [
    TemperatureLogitsWarper(0.7), TopKLogitsWarper(7), TopPLogitsWarper(0.8), MinPLogitsWarper(0.1),
    TopKLogitsWarper(9, min_tokens_to_keep=2), MinPLogitsWarper(0.9, min_tokens_to_keep=3), TypicalLogitsWarper(0.6),
    LogitNormalization(), RepetitionPenaltyLogitsProcessor(1.4), NoRepeatNGramLogitsProcessor(1),
    RepetitionPenaltyLogitsProcessor(1.4, prompt_ignore_length=2),
]  # fmt: skip


@given(order=st.permutations(range(len(PROCESSORS))), used=st.integers(0, 5), do_sample=st.booleans())
def test_processors_in_any_order_choose_as_they_would(order: list[int], used: int, do_sample: bool) -> None:
    processors = LogitsProcessorList(PROCESSORS[i] for i in order[:used])
    logits = torch.randn(1, 2, VOCABULARY, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 3
    tokens, positions = torch.tensor([[5, 9, 2, 17, 0]]), torch.tensor([[3, 4]])
    warped = sampling_for(processors, do_sample).warp(logits, tokens, positions)
    for n, at in enumerate((3, 4)):
        expected = processors(tokens[:, :at], logits[:, n])  # type: ignore[arg-type]
        torch.testing.assert_close(warped[:, n].softmax(-1), expected.softmax(-1))


def test_processors_that_write_leave_raw_logits_alone() -> None:
    logits = torch.zeros(1, 1, VOCABULARY)
    warped = sampling_for(LogitsProcessorList([Against()]), False).warp(
        logits, torch.tensor([[5]]), torch.tensor([[1]])
    )
    assert not logits.any()
    assert warped.any()


@pytest.mark.parametrize(
    "options", [case[0] for case in WARPERS.values()] + [{"repetition_penalty": 1.3, "renormalize_logits": True}]
)
def test_usual_settings_need_no_processor(options: dict[str, Any]) -> None:
    """They decode all rows at once."""
    seen: list[int] = []

    class Counting:
        def drafter(self, rows: int, slots: int, vocabulary: int) -> Any:
            seen.append(rows)
            return Fours().drafter(rows, slots, vocabulary)

    ours(batch(), draft_model=Counting(), do_sample=True, **({"top_k": 0} | options))
    assert seen == [6]


# What comes back


def test_output_object_carries_sequences_and_statistics(plain: Tensor) -> None:
    found = ours(batch(), return_dict_in_generate=True, fsd_threshold=0.2)
    results = SpeculativeDecoder(TARGET, DRAFT, word_tokenizer()).generate(
        [ids[mask.bool()].tolist() for ids, mask in zip(*batch().values(), strict=True)], NEW, threshold=0.2
    )
    assert isinstance(found, FsdGenerateOutput)
    assert found.rounds is not None
    assert found.rounds.tolist() == [r.rounds for r in results]
    assert found.accepted is not None
    assert found.accepted.tolist() == [r.accepted for r in results]
    assert found.intervals is not None
    assert found.intervals.tolist() == [list(r.interval) for r in results]
    for sequence, result in zip(found.sequences[:, 9:].tolist(), results, strict=True):
        assert sequence[: len(result.tokens)] == result.tokens
    assert same(ours(batch(), return_dict_in_generate=True).sequences, plain)


def test_thresholds_and_draft_sources_arrive() -> None:
    """At T = ∞ `fsd` takes whatever is drafted: here always the token 4."""
    found = ours(one(), draft_model=Fours(), fsd_rule="fsd", fsd_threshold=float("inf"), fsd_draft_length=3)
    assert found[0, 4:7].tolist() == [4, 4, 4]
    assert same(ours(one(), draft_model=Fours()), theirs(one()))


# Streaming


def test_streamers_get_what_generate_would_give_them(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = word_tokenizer()
    shown = []
    for run in (theirs, ours):
        run(one(), streamer=TextStreamer(tokenizer, skip_prompt=False))
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_text_can_be_read_from_another_thread(skip_prompt: bool) -> None:
    tokenizer = word_tokenizer()
    texts = []
    for run in (theirs, ours):
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=skip_prompt, timeout=60)
        Thread(target=run, args=(one(),), kwargs={"streamer": streamer}).start()
        texts.append(list(streamer))
    assert "".join(texts[0]) == "".join(texts[1])
    assert len(texts[1]) > 3, "came in one piece"


# Profiles


def of_this_pair(changes: dict[str, Any] | None = None) -> ThresholdProfile:
    mine: dict[str, Any] = {"tokenizer": tokenizer_fingerprint(word_tokenizer()), "dtype": "float64"}
    for role, model in (("target", TARGET), ("draft", DRAFT)):
        mine |= {f"{role}.fingerprint": model_fingerprint(model), f"{role}.vocab_size": VOCABULARY}
        mine |= {f"{role}.dtype": "float64"}
    return profile(mine | (changes or {}))


def profiled(inputs: dict[str, Tensor], fsd_profile: Any, **options: Any) -> Any:
    return ours(inputs, fsd_profile=fsd_profile, fsd_threshold=None, **options)


@pytest.mark.parametrize("fsd_tokenizer", [None, word_tokenizer()])
def test_a_profile_sets_rule_threshold_and_draft_length(tmp_path: Path, fsd_tokenizer: Any) -> None:
    made = of_this_pair({"rule": "fsd", "divergence": "tv", "threshold": 0.9, "draft_length": 3})
    made.save(tmp_path / "profile.json")
    by_hand = ours(
        batch(),
        return_dict_in_generate=True,
        fsd_rule="fsd",
        fsd_divergence="tv",
        fsd_threshold=0.9,
        fsd_draft_length=3,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for given in (made, tmp_path / "profile.json"):
            found = profiled(batch(), given, fsd_tokenizer=fsd_tokenizer, return_dict_in_generate=True)
            assert same(found.sequences, by_hand.sequences)
            assert same(found.rounds, by_hand.rounds)
            assert not same(found.sequences, theirs(batch()))


def test_without_a_certificate_a_profile_is_lossless(plain: Tensor) -> None:
    with pytest.warns(UserWarning, match="certifies no threshold for 'arithmetic'") as caught:
        assert same(profiled(batch(), of_this_pair(UNCERTIFIED)), plain)
    assert caught[0].filename == __file__


def test_other_sampling_than_the_profiles_is_not_covered() -> None:
    hot = of_this_pair({"sampling.temperature": 0.8, "sampling.top_k": 5})
    with pytest.warns(UserWarning, match="its certificate says nothing of this") as caught:
        profiled(one(), hot)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        profiled(one(), hot, do_sample=True, temperature=0.8, top_k=5)


# What is refused


def filled_cache() -> DynamicCache:
    cache = DynamicCache(config=TARGET.config)
    TARGET(torch.tensor([[5, 9]]), past_key_values=cache)
    return cache


HOLE = torch.tensor([[1, 1, 0, 1]])
BAD_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("draft_model is missing", {"draft_model": None}),
    (
        "assistant_model never reaches fsd_generate; give the model as draft_model=",
        {"draft_model": None, "assistant_model": DRAFT},
    ),
    ("draft_model is 'gpt2'; it must be a loaded causal LM", {"draft_model": "gpt2"}),
    ("beam search", {"num_beams": 3}),
    ("contrastive search", {"penalty_alpha": 0.6, "top_k": 4}),
    ("assisted generation", {"prompt_lookup_num_tokens": 3}),
    *(
        (f"{name} is set", {name: True, "return_dict_in_generate": True})
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    ),
    ("synced_gpus is set", {"synced_gpus": True}),
    ("past_key_values is given", {"past_key_values": DynamicCache(config=TARGET.config)}),
    ("past_key_values is given", {"past_key_values": filled_cache()}),
    ("attention_mask hides tokens", {"attention_mask": HOLE}),
    ("attention_mask hides tokens", {"attention_mask": torch.tensor([[1, 1, 1, 0]])}),
    ("prompt 0 is empty", {"attention_mask": torch.zeros(1, 4, dtype=torch.long)}),
    ("position_ids do not count the prompt from 0", {"position_ids": torch.tensor([[3, 4, 5, 6]])}),
    ("UnbatchedClassifierFreeGuidanceLogitsProcessor", {"guidance_scale": 1.5}),
    ("EncoderRepetitionPenaltyLogitsProcessor", {"encoder_repetition_penalty": 1.5}),
    ("unknown rule 'x'", {"fsd_rule": "x"}),
    ("unknown divergence", {"fsd_divergence": "x"}),
    ("threshold is NaN", {"fsd_threshold": float("nan")}),
    ("draft_length is 0", {"fsd_draft_length": 0}),
    ("fsd_threshold is given, but fsd_profile sets it", {"fsd_profile": "nowhere"}),
    ("profile 'nowhere' cannot be read", {"fsd_profile": "nowhere", "fsd_threshold": None}),
]


@pytest.mark.parametrize(("message", "call"), BAD_CALLS, ids=[f"{i} {m}" for i, (m, _) in enumerate(BAD_CALLS)])
def test_what_cannot_be_done_is_refused(message: str, call: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        ours(one(), **call)


def test_inputs_without_ids_are_refused() -> None:
    with pytest.raises(UsageError, match="inputs_embeds is given"):
        ours({"inputs_embeds": TARGET.get_input_embeddings()(torch.tensor([[5, 9]]))})


def test_rows_that_may_differ_need_a_pad_token() -> None:
    class Padless(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return input_ids[:, -1] > 20

    model = llama(seed=1, eos_token_id=None, pad_token_id=None)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    given: dict[str, Any] = {"max_new_tokens": 4, "draft_model": DRAFT} | LOSSLESS
    ids = torch.tensor([[5, 9], [7, 2]])
    assert model.generate(ids, **given).shape == (2, 6)
    with pytest.raises(UsageError, match="2 sequences may differ in length and there is no pad token"):
        model.generate(ids, **given, stopping_criteria=StoppingCriteriaList([Padless()]))


def test_encoder_decoders_are_refused() -> None:
    config = BartConfig(vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16,
                        decoder_ffn_dim=16, encoder_attention_heads=2, decoder_attention_heads=2)  # fmt: skip
    model: Any = BartForConditionalGeneration(config)
    with pytest.raises(UsageError, match="BartForConditionalGeneration is an encoder-decoder"):
        model.generate(torch.tensor([[5, 9]]), max_new_tokens=2, draft_model=DRAFT, **LOSSLESS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target.fingerprint": "b"}, "the profile's target is 'big'"),
        ({"draft.fingerprint": "s"}, "the profile's draft is 'small'"),
        ({"divergence_version": 99}, "divergences are version 99"),
    ],
)
def test_profiles_of_other_models_are_refused(changes: dict[str, Any], message: str) -> None:
    for fsd_tokenizer in (None, word_tokenizer()):
        with pytest.raises(UsageError, match=message):
            profiled(one(), of_this_pair(changes), fsd_tokenizer=fsd_tokenizer)


def test_a_tokenizer_given_is_held_against_the_profile() -> None:
    with pytest.raises(UsageError, match="another tokenizer"):
        profiled(one(), of_this_pair(), fsd_tokenizer=word_tokenizer(30))


def test_broken_logits_are_an_error() -> None:
    broken = llama(seed=1)
    with torch.no_grad():
        broken.model.embed_tokens.weight[9] = float("nan")
    with pytest.raises(NumericalError, match="prompt 0 got logits that are NaN"):
        broken.generate(torch.tensor([[5, 9]]), max_new_tokens=3, draft_model=DRAFT, **LOSSLESS)
