"""EAGLE-3 heads of speculators, SpecForge and ModelOpt: q by each format's definition, and what cannot be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import Eagle, save_head
from fsd_decoding.memory import ModelSize
from fsd_decoding.tree_shape import TreeShape
from support.messages import usage_error
from support.models.head_formats import MODELOPT, SPECFORGE, SPECULATORS, Format, SavedHead, defined_q
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer
from support.models.tiny_pair import ragged_prompts

KNOWN = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))[:20].sort().values
IDS = "eagle_aux_hidden_state_layer_ids"
EMBEDDINGS = ("embed_tokens.weight",)
SLIDING: Mapping[str, Any] = {"layer_types": ["sliding_attention"], "sliding_window": 4, "use_sliding_window": True}
# What speculators 0.9 trains unless it is told otherwise.
USUAL: Mapping[str, Any] = {**SLIDING, "norm_before_fc": True, "norm_output": True, "known": KNOWN}
BIASES = {"attention_bias": True, "mlp_bias": True}
HEADS: Mapping[str, tuple[Format, Mapping[str, Any]]] = {
    "speculators": (SPECULATORS, {}),
    "speculators, of some tokens": (SPECULATORS, {"known": KNOWN}),
    "speculators, without embeddings": (SPECULATORS, {"without": EMBEDDINGS}),
    "speculators, norm_before_residual": (SPECULATORS, {"norm_before_residual": True}),
    "speculators, norm_before_fc": (SPECULATORS, {"norm_before_fc": True}),
    "speculators, fc_norm": (SPECULATORS, {"fc_norm": True}),
    "speculators, norm_output": (SPECULATORS, {"norm_output": True}),
    "speculators, a window": (SPECULATORS, SLIDING),
    "speculators, biases": (SPECULATORS, BIASES),
    "speculators, other layers": (SPECULATORS, {IDS: [7, 1]}),
    "speculators, as usual": (SPECULATORS, USUAL),
    "SpecForge": (SPECFORGE, {"known": KNOWN}),
    "SpecForge, of all tokens": (SPECFORGE, {"known": torch.arange(VOCABULARY)}),
    "SpecForge, for SGLang": (SPECFORGE, {"known": KNOWN, "without": EMBEDDINGS}),
    "SpecForge, EAGLE-3.1": (SPECFORGE, {"known": KNOWN, "fc_norm": True, "norm_output": True}),
    "SpecForge, other layers": (SPECFORGE, {"known": KNOWN, "eagle_config": {IDS: [0, 3, 6]}}),
    "ModelOpt": (MODELOPT, {"without": (*EMBEDDINGS, "t2d")}),
    "ModelOpt, of some tokens": (MODELOPT, {"known": KNOWN, "without": (*EMBEDDINGS, "t2d")}),
    "ModelOpt, the target's output": (MODELOPT, {"without": (*EMBEDDINGS, "lm_head.weight")}),
    "ModelOpt, biases": (MODELOPT, {**BIASES, "without": EMBEDDINGS}),
    "ModelOpt, norm_before_fc": (MODELOPT, {"norm_before_fc": True, IDS: [2, 4, 5], "without": EMBEDDINGS}),
}
SHAPES = {"chain": None, "tree": TreeShape(3, 9)}
IN_TREES = ("speculators, as usual", "SpecForge, EAGLE-3.1", "ModelOpt, of some tokens")


@pytest.fixture(scope="module")
def target() -> Any:
    return llama(seed=0, layers=8)


def saved(kind: str, target: Any) -> SavedHead:
    of, changes = HEADS[kind]
    return of.saved(target, **changes)


@pytest.mark.parametrize(
    ("kind", "shape"), [*((kind, "chain") for kind in HEADS), *((kind, "tree") for kind in IN_TREES)]
)
def test_q_is_what_the_format_defines(kind: str, shape: str, target: Any, tmp_path: Path) -> None:
    """In every round of some texts, at every decided token: from the target's states and from the head's own."""
    head = saved(kind, target)
    decoder = SpeculativeDecoder(
        target, Eagle(head.write(tmp_path / "head")), word_tokenizer(), rule="fsd-coupled", threshold=1.0,
        draft_length=3, tree=SHAPES[shape],
    )  # fmt: skip
    places = set()

    def observe(record: Any) -> None:
        proposal = record.proposal
        for row, request in enumerate(record.requests):
            if request is None:
                continue
            text = proposal.tokens[row, : int(proposal.positions[row, 0])].tolist()
            drafted = proposal.drafted[row].tolist()
            for place in range(int(record.drafted[row])):
                expected = defined_q(head, HEADS[kind][0], target, text, drafted[:place]).log_softmax(-1)
                found = proposal.draft_logits[row, place].log_softmax(-1)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # norms are fp32
                places.add(place)

    with torch.inference_mode():
        decoder.generate(ragged_prompts(3), 8, 0.9, batch_size=3, observer=observe)
    assert {0, 1} <= places


def loaded(head: SavedHead, folder: Path, target: Any) -> Any:
    return Eagle(head.write(folder)).load(target)


def test_a_head_that_is_saved_again_is_the_same(target: Any, tmp_path: Path) -> None:
    """In EAGLE's own layout, with the norms and the window that it has; and takes the same memory."""
    head = loaded(saved("speculators, as usual", target), tmp_path / "theirs", target)
    save_head(head, tmp_path / "ours")
    assert repr(Eagle(tmp_path / "ours").load(target)) == repr(head)
    theirs, ours = (ModelSize.of(Eagle(tmp_path / name), torch.float64) for name in ("theirs", "ours"))
    assert theirs == ours


def test_heads_of_the_same_weights_are_told_apart_by_what_they_compute(target: Any, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"norm_before_residual": True}, {"norm_output": True}, {IDS: [1, 4, 5]}, {**SLIDING},
        {**SLIDING, "sliding_window": 5},
    ]  # fmt: skip
    heads = [SPECULATORS.saved(target, **each) for each in changes]
    assert all(torch.equal(head.weights[key], heads[0].weights[key]) for head in heads for key in heads[0].weights)
    assert len({repr(loaded(head, tmp_path / str(i), target)) for i, head in enumerate(heads)}) == len(heads)


def test_our_own_entry_says_which_states_are_read_where_another_does_too(target: Any, tmp_path: Path) -> None:
    for name, of in (("a", SPECULATORS), ("b", MODELOPT)):
        head = of.saved(target, **{IDS: [1, 2, 3], "without": EMBEDDINGS})
        stated = SavedHead({**head.config, "target_hidden_states": [5, 0, 3]}, head.weights)
        assert loaded(stated, tmp_path / name, target).target_layers == (5, 0, 3)


# --- refusals ----------------------------------------------------------------------------------------

REFUSED: Mapping[str, tuple[Format, Mapping[str, Any], str]] = {
    "another algorithm": (SPECULATORS, {"speculators_model_type": "dflash"},
                          "speculators_model_type is 'dflash' in its config.json, and only 'eagle3' is supported"),
    "no layer": (SPECULATORS, {"transformer_layer_config": None},
                 "transformer_layer_config is None in its config.json, and only an object with 'llama'"),
    "another layer": (SPECULATORS, {"transformer_layer_config": {"model_type": "qwen3"}},
                      "transformer_layer_config is {'model_type': 'qwen3'} in its config.json, and only an object"),
    "no word on the residual": (SPECULATORS, {"norm_before_residual": None},
                                "norm_before_residual is None in its config.json, and must be true or false: where it"),
    "a norm's name": (SPECULATORS, {"fc_norm": "rms"}, "fc_norm is 'rms' in its config.json; it must be true or false"),
    "a norm without weights": (SPECULATORS, {"fc_norm": True}, "'fc_norm.0.weight' is missing, which its config.json"),
    "the last state": (SPECULATORS, {IDS: [2, 4, 8]},
                       f"{IDS} is [2, 4, 8] in its config.json; it must list numbers from 0 to 7 for this target"),
    "too few layers": (SPECULATORS, {IDS: [2, 4]}, "'fc.weight' is of (32, 96), and (32, 64) follows from its"),
    "another size": (SPECULATORS, {"target_hidden_size": 48}, "it is for hidden states of 48 components, and the"),
    "the last layer": (MODELOPT, {"eagle_config": {IDS: [1, 3, 7]}},
                       f"{IDS} is [1, 3, 7] in its config.json; it must list numbers from 0 to 6 for this target"),
    "chunks": (SPECFORGE, {"layer_types": ["chunked_attention"]},
               "layer_types is ['chunked_attention'] and sliding_window None in its config.json; they must be"),
    "no window": (SPECFORGE, {"layer_types": ["sliding_attention"]},
                  "layer_types is ['sliding_attention'] and sliding_window None in its config.json; they must be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_loaded_is_refused_in_one_line(name: str, target: Any, tmp_path: Path) -> None:
    of, changes, message = REFUSED[name]
    head = of.saved(target)
    folder = SavedHead({**head.config, **changes}, head.weights).write(tmp_path / "head")
    assert usage_error(lambda: Eagle(folder).load(target)).startswith(f"EAGLE head {str(folder)!r}: {message}")


KEYS = {
    "verifier_norm.weight": "it holds 'verifier_norm.weight', which nothing in its config.json calls for; give another",
    "layers.0.self_attn.q_norm.weight": "it holds 'layers.0.self_attn.q_norm.weight', which nothing in its config.json",
    "layers.1.mlp.up_proj.weight": "it holds 'layers.1.mlp.up_proj.weight', as a head of several layers does, which is",
    "fc.bias": "it holds 'fc.bias', which nothing in its config.json calls for; give another head",
}


@pytest.mark.parametrize("key", KEYS)
def test_weights_beyond_the_format_are_refused_by_their_own_names(key: str, target: Any, tmp_path: Path) -> None:
    head = SPECULATORS.saved(target)
    folder = SavedHead(head.config, {**head.weights, key: torch.ones(32)}).write(tmp_path / "head")
    assert usage_error(lambda: Eagle(folder).load(target)).startswith(f"EAGLE head {str(folder)!r}: {KEYS[key]}")


def test_a_missing_weight_of_the_layer_is_called_as_in_the_file(target: Any, tmp_path: Path) -> None:
    folder = MODELOPT.saved(target, without=(*EMBEDDINGS, "layers.0.mlp.up_proj.weight")).write(tmp_path / "head")
    message = usage_error(lambda: Eagle(folder).load(target))
    assert "'layers.0.mlp.up_proj.weight' is missing, which its config.json calls for; fetch it anew" in message
