"""EAGLE heads from files: EAGLE's own layout, and what is refused of it in one line."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_common.packed_ids import pack_ids
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import TRAINING, Checkpoint, Eagle, save_head
from fsd_decoding.drafters.eagle_head import Eagle3Head
from fsd_decoding.tree_shape import TreeShape
from support.messages import usage_error
from support.models.tiny_heads import CONFIG, FILES, HEADS, KNOWN, LAYERS, eagle3, eagle3_files, sharpened, written
from support.models.tiny_models import VOCABULARY, llama, word_tokenizer
from support.models.tiny_pair import ragged_prompts

LAYERS_ENTRY = "target_hidden_states"
STATED = {LAYERS_ENTRY: list(LAYERS)}


@pytest.fixture(scope="module")
def target() -> Any:
    return llama(seed=0, layers=8)


def drafted(target: Any, draft: Any, **settings: Any) -> list[tuple[Any, ...]]:
    """What is drafted, all of which is accepted."""
    decoder = SpeculativeDecoder(target, draft, word_tokenizer(), rule="fsd-coupled", threshold=1.0, draft_length=4,
                                 **settings)  # fmt: skip
    results = decoder.generate(ragged_prompts(8), 12, batch_size=4)
    return [(r.tokens, r.rounds, r.accepted) for r in results]


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_a_loaded_head_drafts_as_the_one_that_was_saved(kind: str, pickled: bool, target: Any, tmp_path: Path) -> None:
    head = HEADS[kind](target)
    folder = written(tmp_path / "head", FILES[kind](head, target), pickled, **STATED)
    for tree in (None, TreeShape(2, 6)):
        assert drafted(target, Eagle(folder), tree=tree) == drafted(target, head, tree=tree)
    assert repr(Eagle(folder).load(target)) == repr(head)


def test_what_is_saved_is_loaded(target: Any, tmp_path: Path) -> None:
    head = eagle3(target)
    save_head(head, tmp_path / "head")
    loaded = Eagle(tmp_path / "head").load(target)
    assert repr(loaded) == repr(head)
    assert drafted(target, loaded) == drafted(target, head)


def test_a_model_and_its_head_are_loaded_by_path(target: Any, tmp_path: Path) -> None:
    target.save_pretrained(tmp_path / "target")
    word_tokenizer().save_pretrained(tmp_path / "target")
    save_head(eagle3(target), tmp_path / "head")
    decoder = SpeculativeDecoder.from_pretrained(
        tmp_path / "target", Eagle(tmp_path / "head"), rule="coupled", draft_length=3
    )
    own = decoder.generate(ragged_prompts(4), 12, rule="target")
    assert [r.tokens for r in decoder.generate(ragged_prompts(4), 12)] == [r.tokens for r in own]


def test_eagle3_reads_what_goes_into_layers_2_the_middle_and_the_last_but_two(target: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "head", eagle3_files(eagle3(target), target))
    assert Eagle(folder).load(target).target_layers == (2, 4, 5)


def test_a_full_vocabulary_in_another_order_is_put_in_the_targets(target: Any, tmp_path: Path) -> None:
    """A head that knows all 40 tokens, in the target's order and in another."""
    head = Eagle3Head(CONFIG, LAYERS, VOCABULARY, target.get_input_embeddings(), VOCABULARY)
    sharpened(head)
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))
    weights = eagle3_files(head, target)
    mixed = {**weights, "lm_head.weight": head.lm_head.weight[order], "d2t": order - torch.arange(VOCABULARY)}
    own, other = (written(tmp_path / name, files) for name, files in (("own", weights), ("mixed", mixed)))
    assert drafted(target, Eagle(other)) == drafted(target, Eagle(own))
    states = torch.randn(1, 3, 32, dtype=torch.float64)
    assert torch.equal(Eagle(other).load(target).logits(states), head.logits(states))


def test_own_embeddings_of_eagle3_are_used(target: Any, tmp_path: Path) -> None:
    weights = eagle3_files(eagle3(target), target)
    embeddings = target.get_input_embeddings().weight
    texts = []
    for name, own in (
        ("none", {}),
        ("same", {"embed_tokens.weight": embeddings}),
        ("other", {"embed_tokens.weight": -embeddings}),
    ):
        texts.append(drafted(target, Eagle(written(tmp_path / name, weights | own))))
    assert texts[0] == texts[1] != texts[2]


def test_heads_are_told_apart_by_weights_layers_and_dtype(target: Any, tmp_path: Path) -> None:
    weights = eagle3_files(eagle3(target), target)
    found = [
        Eagle(written(tmp_path / "a", weights)).load(target),
        Eagle(written(tmp_path / "b", weights, target_hidden_states=[1, 4, 5])).load(target),
        Eagle(written(tmp_path / "c", weights | {"norm.weight": weights["norm.weight"] * 2})).load(target),
        Eagle(tmp_path / "a").load(target).float(),
    ]
    assert len({repr(head) for head in found}) == 4


# --- refusals ----------------------------------------------------------------------------------------


def without(key: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda weights: weights.pop(key)


def replaced(**tensors: Tensor) -> Callable[[dict[str, Tensor]], object]:
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    return lambda weights: weights.update(named)


OFFSETS = torch.zeros(KNOWN, dtype=torch.int64)
CHANGED: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "no fusion": (without("fc.weight"), "'fc.weight' is missing, which its config.json calls for; fetch it anew"),
    "a bias": (replaced(fc__bias=torch.zeros(32)), "it holds 'fc.bias', which nothing in its config.json calls for"),
    "an odd shape": (replaced(fc__weight=torch.zeros(32, 64)), "'fc.weight' is of (32, 64), and (32, 96) follows"),
    "ids outside": (replaced(d2t=OFFSETS + 21), "'d2t' names token 40, and the target's last is 39; give"),
    "ids below": (replaced(d2t=OFFSETS - 1), "'d2t' names token -1, and the target's last is 39; give"),
    "ids twice": (replaced(d2t=OFFSETS.index_fill(0, torch.tensor([3]), 1)), "'d2t' names a token twice"),
    "other flags": (replaced(d2t=OFFSETS), "'d2t' and 't2d' name different tokens"),
    "whole numbers": (replaced(fc__weight=torch.zeros(32, 96, dtype=torch.int64)), "'fc.weight' is of int64; fetch it"),
    "NaN": (replaced(norm__weight=torch.full((32,), torch.nan)), "'norm.weight' has numbers that are not finite"),
    "too few ids": (replaced(d2t=OFFSETS[:7]), "'d2t' is of (7,), and 'lm_head.weight' has 20 rows"),
    "an output of no size": (replaced(lm_head__weight=torch.tensor(1.0)), "'lm_head.weight' is of (), and must have"),
    "no ids": (without("d2t"), "it drafts 20 tokens of the target's 40, and has no 'd2t'"),
    "Medusa": (replaced(medusa_head__0__weight=OFFSETS), "it holds 'medusa_head.0.weight', as Medusa does"),
    "a norm": (replaced(fc_norm__weight=OFFSETS), "it holds 'fc_norm.weight', which nothing in its config.json calls"),
}
NO_LAYER = "no Llama layer can be made of its config.json:"
ONE_OF = "in its config.json; it must be one of default, "
ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "another size": ({"hidden_size": 64}, "it is for hidden states of 64 components, and the target's have 32"),
    "another target": ({"target_hidden_size": 48}, "it is for hidden states of 48 components, and the target's have"),
    "layers beyond": ({LAYERS_ENTRY: [1, 2, 8]}, f"{LAYERS_ENTRY} is [1, 2, 8] in its config.json; it must list"),
    "no list": ({LAYERS_ENTRY: 3}, f"{LAYERS_ENTRY} is 3 in its config.json; it must list numbers from 0 to 7"),
    "no activation": ({"hidden_act": "none"}, "hidden_act is 'none' in its config.json; it must be"),
    "activations": ({"hidden_act": ["silu"]}, "hidden_act is ['silu'] in its config.json; it must be"),
    "a list of engines": ({"eagle_config": [1]}, "eagle_config is [1] in its config.json; it must be an object"),
    "a layer of terabytes": ({"intermediate_size": 1 << 36}, "'midlayer.mlp.down_proj.weight' is of (32, "),
    "a size below 0": ({"intermediate_size": -4}, f"{NO_LAYER} Trying to create tensor with"),
    "odd heads": ({"num_attention_heads": 5, "head_dim": None}, NO_LAYER),
    "no such rotation": ({"rope_parameters": {"rope_type": "bend"}}, f"rope_parameters has rope_type 'bend' {ONE_OF}"),
    "an older name": ({"rope_scaling": {"type": "bend", "factor": 2.0}}, f"rope_scaling has rope_type 'bend' {ONE_OF}"),
    "no rotation": ({"rope_scaling": {"rope_type": None}}, f"rope_scaling has rope_type None {ONE_OF}"),
    "rotations": ({"rope_scaling": {"rope_type": ["yarn"]}}, f"rope_scaling has rope_type ['yarn'] {ONE_OF}"),
    "no factor": ({"rope_scaling": {"rope_type": "linear"}}, f"{NO_LAYER} \"Missing required keys in"),
    "a heads' number": ({"num_attention_heads": "four"}, f"{NO_LAYER} Validation error for field 'num_attention_h"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_tensors_that_do_not_fit_are_refused(name: str, target: Any, tmp_path: Path) -> None:
    change, message = CHANGED[name]
    weights = eagle3_files(eagle3(target), target)
    change(weights)
    folder = written(tmp_path / "head", weights)
    assert usage_error(lambda: Eagle(folder).load(target)).startswith(f"EAGLE head {str(folder)!r}: {message}")


@pytest.mark.parametrize("name", ENTRIES)
def test_configurations_that_do_not_fit_are_refused(name: str, target: Any, tmp_path: Path) -> None:
    entries, message = ENTRIES[name]
    folder = written(tmp_path / "head", eagle3_files(eagle3(target), target), **entries)
    assert usage_error(lambda: Eagle(folder).load(target)).startswith(f"EAGLE head {str(folder)!r}: {message}")


def test_errors_of_several_lines_are_told_whole_in_one(target: Any, tmp_path: Path) -> None:
    """transformers names the field in the first line, and what is wrong with it in the next."""
    folder = written(tmp_path / "head", eagle3_files(eagle3(target), target), num_attention_heads="four")
    message = usage_error(lambda: Eagle(folder).load(target))
    assert "'num_attention_heads': TypeError: Field 'num_attention_heads' expected int, got str" in message
    assert message.endswith("; correct it, or give another head")


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("key", ["layers.0.input_layernorm.weight", "layers.1.mlp.up_proj.weight"])
def test_layers_of_other_kinds_are_refused(kind: str, key: str, target: Any, tmp_path: Path) -> None:
    weights = FILES[kind](HEADS[kind](target), target)
    folder = written(tmp_path / "head", weights | {key: torch.zeros(2)})
    assert f"it holds {key!r}" in usage_error(lambda: Eagle(folder).load(target))


def test_a_target_with_too_few_layers_is_refused(target: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "head", eagle3_files(eagle3(target), target))
    message = usage_error(lambda: Eagle(folder).load(llama(seed=0, layers=4)))
    assert "the target has 4 layers, and a head that does not name others reads" in message


def pickled(value: Any) -> Callable[[Path], object]:
    """Puts a pickle in the place of the weights."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        torch.save(value, folder / "pytorch_model.bin")

    return damage


def as_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def as_damaged_pickle(folder: Path) -> None:
    """A pickle that appends to nothing."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02a")


def as_quantised(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch means to give these up
        pickled({"fc.weight": torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.qint8)})(folder)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no config": lambda folder: os.unlink(folder / "config.json"),
    "config of a list": lambda folder: (folder / "config.json").write_text("[1]"),
    "config cut short": lambda folder: (folder / "config.json").write_text('{"hidden_size": 3'),
    "config of bytes": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"),
    "no weights": lambda folder: os.unlink(folder / "model.safetensors"),
    "weights cut short": lambda folder: (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}"),
    "a folder": as_folder,
    "a damaged pickle": as_damaged_pickle,
    "a pickle of code": pickled(os.getcwd),
    "a pickle of a list": pickled([1]),
    "a numbered tensor": pickled({1: torch.zeros(2)}),
    "a sparse tensor": pickled({"fc.weight": torch.zeros(32, 96).to_sparse()}),
    "a quantised tensor": as_quantised,
    "a tensor without memory": pickled({"fc.weight": torch.zeros(32, 96, device="meta")}),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused_in_one_line(name: str, target: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "head", eagle3_files(eagle3(target), target))
    DAMAGE[name](folder)
    assert usage_error(lambda: Eagle(folder).load(target)).startswith(f"EAGLE head {str(folder)!r}")


OF_ANOTHER_TRAINER = [
    "[1]",
    '{"loss": 1}\n{"loss": 2}',
    "",
    '{"loss": NaN}',
    '{"source": "a hub"}',
    "\x00\x01",
    '{"source": {}}',
]
OURS = json.dumps({"source": {"name": "arithmetic", "keys": pack_ids([3, 2**47])}})
OURS_DAMAGED = [OURS[:-6], OURS.replace('"keys": "', '"keys": "é'), '{"source": {"keys": [1, 2]}}', f"{OURS} x"]


def test_what_a_head_was_trained_on_is_read_and_files_of_other_trainers_are_not(target: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "head", eagle3_files(eagle3(target), target))
    for content, keys in ((OURS, {3, 2**47}), *((content, set[int]()) for content in OF_ANOTHER_TRAINER)):
        (folder / TRAINING).write_text(content)
        assert Checkpoint.read(folder).trained_on == keys
    for content in OURS_DAMAGED:
        (folder / TRAINING).write_text(content)
        complaint = usage_error(lambda: Checkpoint.read(folder))
        assert complaint == f"EAGLE head '{folder}': keys in training.json are damaged; fetch it anew"


def test_a_folder_that_is_not_there_is_refused(target: Any, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    assert f"EAGLE head {str(missing)!r} is not a local folder" in usage_error(lambda: Eagle(missing).load(target))
