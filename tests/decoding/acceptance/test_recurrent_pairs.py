"""Pairs with recurrent layers: lossless texts are the target's own, alone and in batches with refills."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from fsd_calib import SpeculativeDecoder, TreeShape, fsd_generate
from fsd_common.errors import UsageError
from support.models.recurrent_models import RECURRENT
from support.models.tiny_models import VOCABULARY, llama, random_model, word_tokenizer
from support.models.wide_scans import use_wide_scans

PAIRS = {
    "attention with mamba2": ("llama", "mamba2"),
    "qwen3-next with mamba2": ("qwen3-next", "mamba2"),
    "falcon-h1 with attention": ("falcon-h1", "llama"),
    "mamba with itself": ("mamba", "mamba"),
    "kimi-linear with lfm2": ("kimi-linear", "lfm2, convolutions alone"),
}
NEW = 20


@pytest.fixture(autouse=True)
def float64_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wide_scans(monkeypatch)


def model_of(name: str) -> Any:
    return llama(seed=1, layers=2) if name == "llama" else random_model(RECURRENT[name], seed=1)


def prompts() -> list[list[int]]:
    random = Random(3)
    shared = [random.randrange(2, VOCABULARY) for _ in range(18)]
    return [
        *([random.randrange(2, VOCABULARY) for _ in range(length)] for length in (2, 2, 3, 9, 9, 14)),
        *([*shared, random.randrange(2, VOCABULARY)] for _ in range(3)),  # read once as far as they are shared
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("pair", PAIRS)
def test_lossless_texts_are_the_targets_own_in_any_batch(pair: str, temperature: float) -> None:
    target, draft = map(model_of, PAIRS[pair])
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), draft_length=4, temperature=temperature)
    own = [result.tokens for result in decoder.generate(prompts(), NEW, rule="target")]
    for rule in ("coupled", "fsd-coupled"):
        results = decoder.generate(prompts(), NEW, rule=rule, threshold=-1.0, batch_size=3)
        assert [result.tokens for result in results] == own
    ragged = decoder.generate(prompts(), NEW, rule="coupled", draft_length=[1, 2, 3, 4, 4, 3, 2, 1, 2], batch_size=4)
    assert [result.tokens for result in ragged] == own
    alone = [decoder.generate([prompt], NEW, rule="coupled", ids=[i])[0].tokens for i, prompt in enumerate(prompts())]
    assert alone == own


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_draft_that_is_the_target_is_accepted_whole(name: str, temperature: float) -> None:
    """So q, by states after every round, is that of the text; a recurrent target takes a single token, too."""
    model = model_of(name)
    decoder = SpeculativeDecoder(model, model, word_tokenizer(), draft_length=5, temperature=temperature)
    results = decoder.generate(prompts(), NEW, rule="fsd-coupled", threshold=-1.0, batch_size=3)
    assert all(result.rounds <= -(-NEW // 6) for result in results)
    own = decoder.generate(prompts(), NEW, rule="target")
    assert [result.tokens for result in results] == [result.tokens for result in own]
    (single,) = decoder.generate([[3]], NEW, rule="target")
    assert single.rounds > 0
    with pytest.raises(
        UsageError, match=r"^a prompt has one token, and a draft with recurrent layers begins with two;"
    ):
        decoder.generate([[3]], NEW, rule="coupled")


def test_generate_of_transformers_decodes_a_recurrent_target() -> None:
    target, draft = model_of("mamba2"), model_of("llama")
    asked = torch.tensor([[5, 6, 7, 8]])
    own = target.generate(asked, max_new_tokens=8, do_sample=False)
    found = target.generate(
        asked, max_new_tokens=8, do_sample=False, custom_generate=fsd_generate, draft_model=draft, fsd_rule="sd"
    )
    assert found.tolist() == own.tolist()


@pytest.mark.parametrize("pair", ["attention with mamba2", "falcon-h1 with attention"])
def test_trees_are_refused_by_the_name_of_the_model(pair: str) -> None:
    target, draft = map(model_of, PAIRS[pair])
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), draft_length=3)
    refused = (
        r"^tree is .*, and (mamba2|falcon_h1) has recurrent layers, which go through chains alone; give tree='chain'"
    )
    with pytest.raises(UsageError, match=refused):
        decoder.generate(prompts()[:1], 4, rule="sd", tree=TreeShape(top_k=2, nodes=4))
