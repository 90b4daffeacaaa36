"""Errors about invalid input, broken logits and memory: one line that names the cause, and finished results kept."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fsd_common.errors import NumericalError, OutOfMemoryError, UsageError
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.ngram import NGram
from fsd_decoding.engine.result import Result
from fsd_decoding.rules import RULES, rule_named
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer

NEW = 24
ENDLESS = 2**47  # more tokens than a process can address, at 8 bytes per id


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder(llama(seed=1), llama(seed=2, layers=1), word_tokenizer())


BAD_CALLS: list[tuple[str, dict[str, object]]] = [
    (r"prompts is \[\]; it must be a list of at least one prompt", {"prompts": []}),
    ("prompts is 'w5'", {"prompts": "w5"}),
    ("prompt 1 is empty; it must hold at least one token", {"prompts": [[5], []]}),
    ("prompt 0 is empty", {"prompts": [""]}),
    (r"prompt 'w5 .udcff' holds what is not UTF-8; give it in UTF-8", {"prompts": ["w5 \udcff"]}),
    (r"prompt 1 is \[5.5\]; it must be a text or a list of token ids", {"prompts": [[5], [5.5]]}),
    ("prompt 0 is None", {"prompts": [None]}),
    ("prompt 1 has 128 tokens, the target's context is 128; shorten the prompt", {"prompts": [[5], [5] * 128]}),
    ("max_new_tokens is 0; it must be a whole number of at least 1", {"max_new_tokens": 0}),
    ("max_new_tokens is 2.5", {"max_new_tokens": 2.5}),
    ("draft_length is 0; it must be a whole number of at least 1", {"draft_length": 0}),
    ("draft_length is 0", {"draft_length": [0]}),
    ("draft_length is -3", {"draft_length": -3}),
    ("draft_length is 2.0; it must be a whole number", {"draft_length": [2.0]}),
    ("draft_length is True; it must be a whole number", {"draft_length": True}),
    ("draft_length is '5'", {"draft_length": "5"}),
    ("draft_length has 2 entries for 1 prompts; give one each", {"draft_length": [3, 4]}),
    ("batch_size is 0; it must be a whole number of at least 1", {"batch_size": 0}),
    ("threshold is NaN; it must be a number", {"threshold": math.nan}),
    ("threshold is NaN", {"threshold": [math.nan]}),
    ("threshold is None", {"threshold": [None]}),
    ("threshold has 2 entries for 1 prompts", {"threshold": [0.1, 0.2]}),
    ("ids has 2 entries for 1 prompts", {"ids": [1, 2]}),
    ("unknown rule 'x'; known: " + ", ".join(RULES), {"rule": "x"}),
    ("temperature is -1", {"temperature": -1.0}),
    ("temperature is nan", {"temperature": math.nan}),
    ("top_k is 0", {"temperature": 1.0, "top_k": 0}),
    ("top_k is 3 at temperature 0", {"top_k": 3}),
    ("top_p is 2", {"temperature": 1.0, "top_p": 2.0}),
    ("stop is 'ab'", {"stop": "ab"}),
    (r"stop is \[''\]", {"stop": [""]}),
    ("stop is None", {"stop": None}),
    ("prompts is {0: ", {"prompts": {0: [5]}}),
    ("ids is '7'; it must be a list of whole numbers", {"ids": "7"}),
    ("an entry of ids is 1.5; it must be a whole number", {"ids": [1.5]}),
    ("threshold is '0.1'; it must be a number", {"threshold": "0.1"}),
    ("batch_size is None", {"batch_size": None}),
    ("temperature is '0.5'", {"temperature": "0.5"}),
    ("top_k is 2.5", {"temperature": 1.0, "top_k": 2.5}),
]


@pytest.mark.parametrize(("message", "call"), BAD_CALLS, ids=[m for m, _ in BAD_CALLS])
def test_bad_calls_are_named(decoder: SpeculativeDecoder, message: str, call: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        decoder.generate(**({"prompts": [[5]], "max_new_tokens": NEW} | call))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


BAD_DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("unknown score 'x'; known: js, ag, kl_qp, kl_pq, tv, hellinger, doubt, margin, ", {"score": "x"}),
    ("unknown rule 'x'; known: " + ", ".join(RULES), {"rule": "x"}),
    ("draft_length is 0", {"draft_length": 0}),
    ("draft_length is True", {"draft_length": True}),
    ("threshold is NaN", {"threshold": math.nan}),
    ("'raw' or 'processed' logits, not on 'cooked'", {"on": "cooked"}),
]


@pytest.mark.parametrize(("message", "settings"), BAD_DECODERS, ids=[m for m, _ in BAD_DECODERS])
def test_bad_settings_are_named(decoder: SpeculativeDecoder, message: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        SpeculativeDecoder(decoder.target, decoder.draft, decoder.tokenizer, **settings)


def test_arrays_and_tensors_are_as_good_as_lists(decoder: SpeculativeDecoder) -> None:
    prompts = [[5, 6], [9], [11, 4, 3]]
    lists = decoder.generate(prompts, NEW, threshold=[0.1, 0.2, 0.3], draft_length=[1, 2, 3])
    makers: list[Any] = [np.array, torch.tensor]
    for array in makers:
        actual = decoder.generate(
            [array(p) for p in prompts], NEW, threshold=array([0.1, 0.2, 0.3]), draft_length=array([1, 2, 3])
        )  # fmt: skip
        assert [r.tokens for r in actual] == [r.tokens for r in lists]
        assert [r.drafted for r in actual] == [r.drafted for r in lists]


def test_a_draft_larger_than_the_target_gives_a_warning() -> None:
    small, large = llama(seed=1, layers=1), llama(seed=2, layers=2)
    message = r"the draft has [\d,]+ parameters, the target [\d,]+: drafting costs more than it saves"
    with pytest.warns(UserWarning, match=message):
        SpeculativeDecoder(small, large, word_tokenizer())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SpeculativeDecoder(large, small, word_tokenizer())
        SpeculativeDecoder(small, NGram(), word_tokenizer())


def test_different_tokenizers_are_refused_naming_the_first_difference(tmp_path: Path) -> None:
    for name, words in (("target", VOCABULARY), ("draft", VOCABULARY - 2)):
        llama(seed=1).save_pretrained(tmp_path / name)
        word_tokenizer(words).save_pretrained(tmp_path / name)
    with pytest.raises(UsageError, match="their tokenizers differ: id 38 is 'w38' in target and no token in draft"):
        SpeculativeDecoder.from_pretrained(tmp_path / "target", tmp_path / "draft")


def discard(model: Any, token: int, value: float, also: slice) -> Any:
    """After `token` the model returns `value` as the logits of the tokens `also`, as after an overflow."""

    def hook(_: Any, args: Any, fed: dict[str, Any], out: Any) -> None:
        kept = fed["input_ids"][:, -out.logits.shape[1] :]
        out.logits[..., also] = torch.where((kept == token)[..., None], value, out.logits[..., also])

    return model.register_forward_hook(hook, with_kwargs=True)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = Random(0)
    return [[rng.randrange(2, VOCABULARY) for _ in range(rng.randint(1, 6))] for _ in range(12)]


def first_unique_token(prompts: list[list[int]], results: list[Result]) -> tuple[int, int, int]:
    """(prompt, token, place) of a token that only one text contains, at place 7 or later."""
    for i, result in enumerate(results):
        others = {t for j, r in enumerate(results) if j != i for t in [*prompts[j], *r.tokens]}
        for place, token in enumerate(result.tokens[:-3]):
            if place >= 7 and token not in others | {*prompts[i], *result.tokens[:place]}:
                return i, token, place
    raise AssertionError("no text has a token of its own")


def decode_broken(role: str, value: float, prompts: list[list[int]], **how: Any) -> tuple[Any, list[Result], int, int]:
    """Decodes with one model's logits broken after one token; draft and target are equal, so every draft is accepted.

    Returns the error, the results of the unbroken models, and the prompt and the place of the token.
    """
    pair = SpeculativeDecoder(llama(seed=1), llama(seed=1), word_tokenizer(), rule="coupled", draft_length=3)
    sound = pair.generate(prompts, NEW, **how)
    prompt, token, place = first_unique_token(prompts, sound)
    discard(getattr(pair, role), token, value, slice(3, 5))
    with pytest.raises(NumericalError) as caught:
        pair.generate(prompts, NEW, batch_size=3, **how)
    return caught.value, sound, prompt, place


@pytest.mark.thinned(every=3)
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_in_a_later_round_are_named_and_finished_results_kept(
    prompts: list[list[int]], value: float, role: str
) -> None:
    error, sound, prompt, place = decode_broken(role, value, prompts)
    round_, seat = divmod(place, 4)  # a round adds three drafted tokens and a bonus
    unread = 3 if role == "target" else 2  # from this place on, a token is fed in the next round
    at = round_ + 1 + (seat >= unread)
    assert f"prompt {prompt} got logits that are NaN or +inf in round {at};" in str(error)
    assert at > 1
    assert error.finished
    assert prompt not in error.finished
    assert all(result == sound[i] for i, result in error.finished.items())


@pytest.mark.thinned(every=9)
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("rule", RULES)
def test_minus_infinity_is_a_probability_of_zero(prompts: list[list[int]], rule: str, role: str) -> None:
    pair = SpeculativeDecoder(llama(seed=1), llama(seed=1), word_tokenizer(), rule=rule)
    for token in range(VOCABULARY):
        discard(getattr(pair, role), token, -math.inf, slice(10, 30))
    actual = pair.generate(prompts, NEW, 0.9, threshold=-1.0 if rule_named(rule).fuzzy else None)
    assert len(actual) == len(prompts)
    if role == "target":
        assert not any(10 <= t < 30 for r in actual for t in r.tokens)


@pytest.mark.parametrize("rule", ["target", "sd", "coupled", "fsd", "fsd-coupled"])
def test_broken_logits_in_the_first_round_are_named_under_every_rule(prompts: list[list[int]], rule: str) -> None:
    """Token 39 stands only in the sixth prompt, and its embedding is NaN."""
    broken = llama(seed=1)
    with torch.no_grad():
        broken.model.embed_tokens.weight[39] = math.nan
    pair = SpeculativeDecoder(broken, llama(seed=2, layers=1), word_tokenizer())
    clean = [[t for t in prompt if t != 39] or [5] for prompt in prompts[:6]]
    clean[5].append(39)
    with pytest.raises(NumericalError, match=r"prompt 5 got logits that are NaN or \+inf in round 1") as caught:
        pair.generate(clean, 1, rule=rule, threshold=0.2, batch_size=1)
    assert sorted(caught.value.finished) == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def endless() -> SpeculativeDecoder:
    """Models without a limit of their context, so that no text is shortened to one that fits into memory."""
    target, draft = (llama(seed, layers=1, max_position_embeddings=2 * ENDLESS) for seed in (1, 2))
    return SpeculativeDecoder(target, draft, word_tokenizer())


@pytest.mark.parametrize(
    ("prompts_", "batch_size", "message"),
    [
        ([[5]] * 8, 8, "out of memory with batch_size 8; try batch_size 4"),
        ([[5]] * 8, 7, "out of memory with batch_size 7; try batch_size 3"),
        ([[5]], 1, "out of memory with batch_size 1; shorten max_new_tokens or the prompt"),
    ],
)
def test_out_of_memory_names_the_batch_size_and_what_to_try(
    endless: SpeculativeDecoder, prompts_: list[list[int]], batch_size: int, message: str
) -> None:
    with pytest.raises(OutOfMemoryError, match=message) as caught:
        endless.generate(prompts_, ENDLESS, batch_size=batch_size)
    assert caught.value.finished == {}


def test_out_of_memory_is_raised_when_a_stream_is_requested(endless: SpeculativeDecoder) -> None:
    with pytest.raises(OutOfMemoryError, match="out of memory with batch_size 1; shorten max_new_tokens"):
        endless.stream([5], ENDLESS)


def test_out_of_memory_suggests_half_of_the_rows_that_were_used(endless: SpeculativeDecoder) -> None:
    with pytest.raises(OutOfMemoryError, match="out of memory with batch_size 1; shorten max_new_tokens"):
        endless.generate([[5]], ENDLESS, batch_size=8)


@pytest.mark.parametrize("token", [VOCABULARY, -1])
def test_a_token_outside_the_vocabulary_is_named(decoder: SpeculativeDecoder, token: int) -> None:
    with pytest.raises(UsageError, match=f"prompt 1 holds token {token}"):
        decoder.generate([[5], [6, token]], NEW)


def test_a_text_that_ends_in_the_round_that_breaks_is_kept() -> None:
    """Token 39 stands only in the second prompt, and its embedding is NaN."""
    broken = llama(seed=1)
    broken.generation_config.eos_token_id = []
    sound = SpeculativeDecoder(llama(seed=1), NGram(), word_tokenizer(), rule="target").generate([[5]], 1)[0]
    with torch.no_grad():
        broken.model.embed_tokens.weight[39] = math.nan
    pair = SpeculativeDecoder(broken, NGram(), word_tokenizer(), rule="target")
    with pytest.raises(NumericalError, match="prompt 1 got logits") as caught:
        pair.generate([[5], [39], [6]], 1)
    assert sorted(caught.value.finished) == [0, 2]
    assert caught.value.finished[0].tokens == sound.tokens


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_in_training_mode_is_refused(role: str) -> None:
    pair = SpeculativeDecoder(llama(seed=1), llama(seed=2, layers=1), word_tokenizer())
    getattr(pair, role).train()
    with pytest.raises(UsageError, match="training mode"):
        pair.generate([[5]], NEW)


def test_typical_needs_a_threshold_on_its_own_scale(decoder: SpeculativeDecoder) -> None:
    with pytest.raises(UsageError, match="rule 'ensemble' measures T on a scale of its own; give threshold= too"):
        decoder.generate([[5]], NEW, rule="ensemble")
    assert decoder.generate([[5]], NEW, rule="ensemble", threshold=0.3)


BAD_DRAFTS: list[tuple[str, Any]] = [
    (r"the draft is the class NGram; pass an instance, NGram\(", NGram),
    (r"the draft is Linear\(.*; it must be a causal LM", torch.nn.Linear(2, 2)),
    ("the draft is None; it must be a causal LM", None),
]


@pytest.mark.parametrize(("message", "draft"), BAD_DRAFTS, ids=[m for m, _ in BAD_DRAFTS])
def test_a_draft_that_is_no_draft_is_named(decoder: SpeculativeDecoder, message: str, draft: Any) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        SpeculativeDecoder(decoder.target, draft, decoder.tokenizer)
    assert "\n" not in str(caught.value)
