"""Training of EAGLE heads: its loss against a dense computation, resumption, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from transformers import Qwen3Config

from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.eagle.loading import Eagle
from fsd_decoding.trees.shape import TreeShape
from fsd_predictors.heads.recipe import HeadRecipe
from fsd_predictors.heads.source import Source
from fsd_predictors.heads.training import train_head
from fsd_predictors.heads.unrolled import Texts, unrolled
from support.messages import usage_error
from support.models.dense_heads import dense_q
from support.models.tiny_heads import eagle3
from support.models.tiny_models import FAMILIES, llama, random_model, word_tokenizer
from support.models.tiny_pair import ragged_prompts

PROMPTS = tuple(" ".join(f"w{token}" for token in prompt) for prompt in ragged_prompts(70))
SOURCE = Source("words", PROMPTS, max_new_tokens=12)
RECIPE = HeadRecipe(epochs=2, batch_size=8)


@pytest.fixture(scope="module")
def target() -> Any:
    return llama(seed=0, layers=8)


class Quiet:
    """Progress that nobody sees. At `stop` of all that is done in steps of a name it is interrupted."""

    def __init__(self, name: str = "", stop: int = 0) -> None:
        self._name, self._left = name, stop

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        def advance(done: int) -> None:
            if self._name and self._name in title:
                self._left -= done
                if self._left < 0:
                    raise KeyboardInterrupt

        yield advance


def trained(target: Any, out: Path, progress: Any = None, source: Source = SOURCE, recipe: HeadRecipe = RECIPE) -> Any:
    return train_head(target, word_tokenizer(), source, out, recipe, progress or Quiet())


# --- the loss ----------------------------------------------------------------------------------------


def test_the_loss_is_of_the_q_that_decoding_has(target: Any) -> None:
    """Of texts of several lengths, from every place, after each of three steps along the text."""
    head, generator = eagle3(target), torch.Generator().manual_seed(0)
    texts = [torch.randint(2, 40, (length,), generator=generator).tolist() for length in (3, 7, 10)]
    begins = [1, 4, 3]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    read = Texts.read(target, head.target_layers, padded, torch.tensor(begins), torch.tensor([len(t) for t in texts]))
    found = unrolled(head.float(), read, steps=3)
    head.double()
    for step, each in enumerate(found):
        losses, same = [], []
        for text, begin in zip(texts, begins, strict=True):
            for drafted in range(begin, len(text)):  # the position of the token that q predicts
                known = drafted - step  # of these tokens the target's states are known; the rest is drafted
                if known < 2:
                    continue
                p = torch.softmax(target(torch.tensor([text[:drafted]])).logits[0, -1], -1)
                q = torch.log_softmax(dense_q(head, target, text[:known], text[known:drafted]), -1)
                within = p[head.known] / p[head.known].sum()
                losses.append(float(-(within * q[head.known]).sum().detach()))
                same.append(bool(q.argmax() == p.argmax()))
        assert int(each.places) == len(losses)
        assert float(each.loss.detach()) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
        assert float(each.agreement) == pytest.approx(sum(same) / len(same))


def test_a_head_learns_and_leaves_the_target_as_it_is(target: Any, tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in target.state_dict().items()}
    record = trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=6, batch_size=8, learning_rate=1e-2))
    losses = [sum(epoch["loss"]) for epoch in record["history"]]
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(weight, before[name]) for name, weight in target.state_dict().items())
    assert not any(weight.grad is not None for weight in target.parameters())


def test_a_training_that_diverges_is_ended_and_keeps_nothing(tmp_path: Path) -> None:
    """Weights so large that the first gradients overflow."""
    target = llama(seed=0, layers=8)
    with torch.no_grad():
        target.get_output_embeddings().weight.mul_(1e30)
    message = usage_error(lambda: trained(target, tmp_path, recipe=HeadRecipe(learning_rate=0.5)))
    assert message == "the training diverges with --learning-rate 0.5; give a lower one"
    assert not (tmp_path / "unfinished" / "checkpoint.pt").exists()


def test_heads_fit_targets_whose_width_is_no_multiple_of_their_heads(tmp_path: Path) -> None:
    """As of some Qwen3."""
    config = Qwen3Config(
        vocab_size=40, hidden_size=36, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, head_dim=8,
        intermediate_size=40, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    target = random_model(config, seed=0)
    trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1))
    decoder = SpeculativeDecoder(target, Eagle(tmp_path / "head"), word_tokenizer(), rule="coupled", draft_length=3)
    own = decoder.generate(ragged_prompts(4), 8, rule="target")
    assert [r.tokens for r in decoder.generate(ragged_prompts(4), 8)] == [r.tokens for r in own]


def test_steps_that_no_text_is_long_enough_for_have_no_loss(target: Any, tmp_path: Path) -> None:
    source = Source("words", tuple(f"w{token}" for token in range(3, 15)), max_new_tokens=2)
    record = trained(target, tmp_path, source=source, recipe=HeadRecipe(epochs=1, steps=4))
    assert record["history"][0]["loss"][3] is None
    assert "NaN" not in (tmp_path / "training.json").read_text()
    assert "| - |" in (tmp_path / "card.md").read_text()


def test_a_trained_head_is_lossless_and_in_its_folder(target: Any, tmp_path: Path) -> None:
    trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1, vocabulary=15))
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == [
        "card.md", "config.json", "model.safetensors", "training.json",
    ]  # fmt: skip
    head: Any = Eagle(tmp_path / "head").load(target)
    assert len(head.known) == 15
    decoder = SpeculativeDecoder(target, head, word_tokenizer(), rule="coupled", draft_length=3)
    own = decoder.generate(ragged_prompts(6), 12, rule="target")
    assert [r.tokens for r in decoder.generate(ragged_prompts(6), 12)] == [r.tokens for r in own]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_all_families_are_lossless(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """With sliding windows, scaled embeddings and no key heads; one prompt has a single token."""
    target = random_model(FAMILIES[family], seed=0).to(dtype)
    source = Source("words", (*PROMPTS[:12], "w3"), 6)
    trained(target, tmp_path / "head", source=source, recipe=HeadRecipe(epochs=1, layers=(0, 1)))
    decoder = SpeculativeDecoder(
        target, Eagle(tmp_path / "head"), word_tokenizer(), rule="coupled", draft_length=3, tree=TreeShape(2, 5)
    )
    own = decoder.generate(ragged_prompts(4), 8, rule="target")
    assert [r.tokens for r in decoder.generate(ragged_prompts(4), 8)] == [r.tokens for r in own]


def test_the_head_drafts_the_most_frequent_tokens(target: Any, tmp_path: Path) -> None:
    record = trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1, vocabulary=5))
    assert record["recipe"]["vocabulary"] == 5
    held = len(PROMPTS) // 10
    texts = SpeculativeDecoder(target, target, word_tokenizer(), rule="target").generate(list(PROMPTS[held:]), 12)
    counts = torch.bincount(torch.tensor([token for text in texts for token in text.tokens]), minlength=40)
    head: Any = Eagle(tmp_path / "head").load(target)
    assert counts[head.known].min() >= counts.sort(descending=True).values[4]


# --- resumption --------------------------------------------------------------------------------------


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("name", "stop"), [("decoding", 64), ("training", 3), ("training", 8), ("training", 11)])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(
    name: str, stop: int, target: Any, tmp_path: Path
) -> None:
    trained(target, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(target, tmp_path / "head", Quiet(name, stop))
    assert (tmp_path / "head" / "unfinished" / "facts.json").exists()
    trained(target, tmp_path / "head")
    assert weights(tmp_path / "head") == weights(tmp_path / "whole")
    assert not (tmp_path / "head" / "unfinished").exists()


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_head_training import RECIPE, trained, llama
trained(llama(seed=0, layers=8), Path(sys.argv[1]), recipe=RECIPE)
"""


@pytest.mark.slow
def test_a_killed_training_ends_as_an_uninterrupted_one(target: Any, tmp_path: Path) -> None:
    """Killed as soon as each file is there, again and again until it has finished."""
    code = KILLED.format(path=[str(Path(__file__).parent), *sys.path])
    out = tmp_path / "head"
    for file in ("texts.jsonl", "checkpoint.pt"):
        process = subprocess.Popen([sys.executable, "-c", code, str(out)])
        deadline = time.monotonic() + 120
        while not (out / "unfinished" / file).exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        process.kill()
        process.wait()
        assert (out / "unfinished" / file).exists()
    with open(out / "unfinished" / "texts.jsonl", "ab") as torn:  # as a kill in the middle of a line leaves it
        torn.write(b"[[2, 3], [4")
    trained(target, out)
    trained(target, tmp_path / "whole")
    assert weights(out) == weights(tmp_path / "whole")


@pytest.mark.parametrize("file", ["facts.json", "texts.jsonl", "checkpoint.pt"])
@pytest.mark.parametrize("content", [b"", b"{", b"[1]\n", b"PK\x03\x04"])
def test_damaged_files_of_an_unfinished_training_are_told(
    file: str, content: bytes, target: Any, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(target, tmp_path, Quiet("training", 11))
    (tmp_path / "unfinished" / file).write_bytes(content)
    if file == "texts.jsonl" and not content.endswith(b"\n"):
        trained(target, tmp_path)  # which a kill may leave
        return
    message = usage_error(lambda: trained(target, tmp_path))
    assert message == (
        f"{str(tmp_path / 'unfinished' / file)!r} is damaged; remove {str(tmp_path / 'unfinished')!r} to begin anew"
    )


def test_texts_of_nobody_knows_what_are_not_used(target: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(target, tmp_path / "head", Quiet("training", 11))
    (tmp_path / "head" / "unfinished" / "facts.json").unlink()
    other = HeadRecipe(epochs=1, batch_size=8, layers=(0, 1))
    trained(target, tmp_path / "head", recipe=other)
    trained(target, tmp_path / "whole", recipe=other)
    assert weights(tmp_path / "head") == weights(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("left", ["model.safetensors.tmp", "unfinished.tmp"])
def test_a_training_killed_as_it_finishes_can_be_run_again(left: str, target: Any, tmp_path: Path) -> None:
    """Killed as soon as the file is there: by polling a slowed process, as no moment is longer."""
    out = tmp_path / "head"
    slowed = "import os, time; sync = os.fsync; os.fsync = lambda file: (sync(file), time.sleep(0.05))\n"
    slowed += "import shutil; remove = shutil.rmtree\n"
    slowed += "shutil.rmtree = lambda *a, **k: (time.sleep(0.5), remove(*a, **k))\n"
    code = slowed + KILLED.format(path=[str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen([sys.executable, "-c", code, str(out)])
    deadline = time.monotonic() + 120
    while not (out / left).exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert (out / left).exists()
    trained(target, out)
    trained(target, tmp_path / "whole")
    assert weights(out) == weights(tmp_path / "whole")
    assert not (out / left).exists()


def test_a_finished_head_is_replaced(target: Any, tmp_path: Path) -> None:
    trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1))
    first = weights(tmp_path / "head")
    trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1, seed=1))
    assert weights(tmp_path / "head") != first


# --- refusals ----------------------------------------------------------------------------------------


def test_an_unfinished_training_of_something_else_is_refused(target: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(target, tmp_path, Quiet("training", 3))
    kept = (tmp_path / "unfinished" / "texts.jsonl").read_bytes()
    others: list[dict[str, Any]] = [
        {"source": Source("words", PROMPTS[:-1], 12)}, {"recipe": HeadRecipe(epochs=3, batch_size=8)},
    ]  # fmt: skip
    for changes, named in zip(others, ("source.problems is 70, not 69", "recipe.epochs is 2, not 3"), strict=True):
        message = usage_error(partial(trained, target, tmp_path, **changes))
        assert f"--out {str(tmp_path)!r} holds an unfinished training whose {named}" in message
        assert f"choose another folder, or remove {str(tmp_path / 'unfinished')!r}" in message
    assert (tmp_path / "unfinished" / "texts.jsonl").read_bytes() == kept


def test_folders_of_something_else_are_refused(target: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    message = usage_error(lambda: trained(target, tmp_path))
    assert message == (
        f"folder {str(tmp_path)!r} holds 'thesis.tex', which is not a file of a head; choose another --out"
    )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_head_or_model_of_another_origin_is_not_overwritten(name: str, target: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_text("precious")
    message = usage_error(lambda: trained(target, tmp_path))
    assert message == (
        f"--out {str(tmp_path)!r} holds {name!r} of a model or head that was not trained here; choose another"
    )
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]


def test_a_folder_in_use_is_refused(target: Any, tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    with FileLock(tmp_path / "unfinished" / ".lock"):
        assert "is in use" in usage_error(lambda: trained(target, tmp_path))


def test_a_file_in_the_place_of_the_folder_is_refused(target: Any, tmp_path: Path) -> None:
    (tmp_path / "head").write_text("")
    assert "cannot be written" in usage_error(lambda: trained(target, tmp_path / "head"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0; it must be a whole number of at least 1"),
        ({"steps": 1.5}, "steps is 1.5; it must be a whole number of at least 1"),
        ({"learning_rate": 2.0}, "learning_rate is 2.0; it must be a number between 0 and 1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be a number between 0 and 1"),
        ({"seed": 2**63}, f"seed is {2**63}; it must be a whole number of at most 63 bits and a sign"),
        ({"layers": (1, 2, 8)}, "--layers is '1,2,8'; the target's are numbered from 0 to 7"),
        ({"layers": ()}, "--layers is ''; the target's are numbered from 0 to 7"),
        ({"vocabulary": 41}, "--vocabulary is 41; the target has 40 tokens"),
    ],
)
def test_recipes_out_of_range_are_refused(changes: dict[str, Any], message: str, target: Any, tmp_path: Path) -> None:
    assert usage_error(lambda: trained(target, tmp_path / "head", recipe=HeadRecipe(**changes))) == message
    assert not (tmp_path / "head").exists()


def test_too_few_problems_are_refused(target: Any, tmp_path: Path) -> None:
    message = usage_error(lambda: trained(target, tmp_path / "head", source=Source("words", PROMPTS[:1], 12)))
    assert message == "task words has 1 problems for tuning; a head needs at least 2"


def test_the_card_reports_what_was_measured(target: Any, tmp_path: Path) -> None:
    record = trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1))
    card = (tmp_path / "head" / "card.md").read_text()
    assert json.loads((tmp_path / "head" / "training.json").read_text()) == json.loads(json.dumps(record))
    assert record["held_out"] == 7
    for name, value in record["drafts"].items():
        assert 1 <= value <= 6
        assert f"| {name} | {value:.2f} |" in card
