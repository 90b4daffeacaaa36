"""Training of EAGLE heads: its loss against a dense computation, resumption, and what is refused."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
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
from transformers import GPT2Config, OPTConfig, Qwen3Config

from fsd_common.files import intended_name, leftovers
from fsd_common.progress.base import Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.drafters.eagle import Eagle, files_of
from fsd_decoding.tree_shape import TreeShape
from fsd_predictors.heads.folder import HeadFolder
from fsd_predictors.heads.recipe import HeadRecipe, Source
from fsd_predictors.heads.training import Texts, train_head, unrolled
from support.messages import usage_error
from support.models.dense_heads import dense_q
from support.models.tiny_heads import eagle3
from support.models.tiny_models import FAMILIES, SMALL, llama, random_model, word_tokenizer
from support.models.tiny_pair import ragged_prompts

PROMPTS = tuple(" ".join(f"w{token}" for token in prompt) for prompt in ragged_prompts(70))
SOURCE = Source("words", PROMPTS, max_new_tokens=12)
SHORT = Source("words", PROMPTS[:20], max_new_tokens=4)
RECIPE = HeadRecipe(epochs=2, batch_size=8)


@pytest.fixture(scope="module")
def target() -> Any:
    return llama(seed=0, layers=8)


class Quiet(Silent):
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


@pytest.fixture(scope="module")
def whole(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole")
    trained(target, out)
    return out


@pytest.fixture(scope="module")
def interrupted(target: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training with one epoch behind it."""
    out = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(KeyboardInterrupt):
        trained(target, out, Quiet("training", 11))
    return out


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
    record = trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=4, batch_size=8, learning_rate=1e-2))
    losses = [sum(epoch["loss"]) for epoch in record["history"]]
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(weight, before[name]) for name, weight in target.state_dict().items())
    assert not any(weight.grad is not None for weight in target.parameters())


def test_texts_of_a_single_token_teach_nothing(target: Any, tmp_path: Path) -> None:
    """Nor do they stop a training."""
    source = Source("words", tuple(f"w{token}" for token in range(3, 15)), max_new_tokens=2)
    record = trained(target, tmp_path, source=source, recipe=HeadRecipe(epochs=1, steps=4))
    assert record["history"][0]["loss"][3] is None


def test_a_trained_head_is_lossless_in_its_folder_and_reports_what_was_measured(target: Any, tmp_path: Path) -> None:
    record = trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1, vocabulary=15))
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == [
        "card.md", "config.json", "model.safetensors", "training.json",
    ]  # fmt: skip
    head: Any = Eagle(tmp_path / "head").load(target)
    assert len(head.known) == 15
    decoder = SpeculativeDecoder(target, head, word_tokenizer(), rule="coupled", draft_length=3)
    own = decoder.generate(ragged_prompts(6), 12, rule="target")
    assert [r.tokens for r in decoder.generate(ragged_prompts(6), 12)] == [r.tokens for r in own]
    card = (tmp_path / "head" / "card.md").read_text()
    assert json.loads((tmp_path / "head" / "training.json").read_text()) == json.loads(json.dumps(record))
    assert record["held_out"] == 7
    for name, value in record["drafts"].items():
        assert 1 <= value <= 6
        assert f"| {name} | {value:.2f} |" in card


@pytest.mark.thinned(every=20)
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


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SMALL | {"hidden_size": 36, "num_attention_heads": 8, "num_key_value_heads": 4}),
        GPT2Config(**SMALL | {"hidden_size": 36, "head_dim": None}),
    ],
    ids=["heads that do not divide the width", "heads of an odd size"],
)
def test_sizes_that_no_llama_has_are_fitted(config: Any, tmp_path: Path) -> None:
    target = random_model(config, seed=0)
    trained(target, tmp_path / "head", source=SHORT, recipe=HeadRecipe(epochs=1, layers=(0, 1)))
    decoder = SpeculativeDecoder(target, Eagle(tmp_path / "head"), word_tokenizer(), rule="coupled", draft_length=3)
    own = decoder.generate(ragged_prompts(4), 8, rule="target")
    assert [r.tokens for r in decoder.generate(ragged_prompts(4), 8)] == [r.tokens for r in own]


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("seed", [2**70, -1])
def test_a_seed_may_be_any_whole_number(seed: int, target: Any, tmp_path: Path) -> None:
    record = trained(target, tmp_path / "head", source=SHORT, recipe=HeadRecipe(epochs=1, seed=seed))
    assert record["recipe"]["seed"] == seed


def test_targets_of_few_layers_are_read_at_both_ends() -> None:
    read = {layers: HeadRecipe().layers_of(llama(seed=0, layers=layers)) for layers in (3, 5, 8)}
    assert read == {3: (0, 1, 2), 5: (0, 2, 4), 8: (2, 4, 5)}


@pytest.mark.slow
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


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize(("name", "stop"), [("decoding", 64), ("training", 3), ("training", 8), ("training", 11)])
def test_an_interrupted_training_ends_as_an_uninterrupted_one(
    name: str, stop: int, target: Any, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(target, tmp_path / "head", Quiet(name, stop))
    assert (tmp_path / "head" / "unfinished" / "facts.json").exists()
    trained(target, tmp_path / "head")
    assert weights(tmp_path / "head") == weights(whole)
    assert not (tmp_path / "head" / "unfinished").exists()


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_head_training import RECIPE, trained, llama
trained(llama(seed=0, layers=8), Path(sys.argv[1]), recipe=RECIPE)
"""


@pytest.mark.slow
def test_a_killed_training_ends_as_an_uninterrupted_one(target: Any, whole: Path, tmp_path: Path) -> None:
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
    assert weights(out) == weights(whole)


KILLED_FINISHING = """
import os, signal, sys
from pathlib import Path
from fsd_common.files import intended_name
from fsd_predictors.heads.folder import HeadFolder

files = {{"model.safetensors": b"new weights", "training.json": b"{{}}"}}
folder = HeadFolder(Path(sys.argv[1]), {{"recipe": {{"seed": 0}}}})

def killed(event, arguments):
    if event == {event!r} and intended_name(os.path.basename(arguments[0])) == {name!r}:
        os.kill(os.getpid(), signal.SIGKILL)

with folder.held():
    folder.add([([2], [3])])
    folder.keep({{"head": {{}}}})
    sys.addaudithook(killed)
    folder.finish(files)
"""


def killed_finishing(out: Path, event: str, name: str) -> None:
    """Kills a process at the end of a training, as soon as it is about to rename or remove a file of a name."""
    code = KILLED_FINISHING.format(event=event, name=name)
    assert subprocess.run([sys.executable, "-c", code, str(out)], check=False).returncode == -signal.SIGKILL


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("name", ["facts.json", "texts.jsonl", "checkpoint.pt", ".lock"])
def test_a_training_killed_as_it_cleans_up_leaves_nothing_to_another(name: str, tmp_path: Path) -> None:
    """Whichever file it was about to remove, the next training, of something else, begins anew."""
    killed_finishing(tmp_path, "os.remove", name)
    folder = HeadFolder(tmp_path, {"recipe": {"seed": 1}})
    with folder.held():
        assert folder.texts() == []
        assert folder.checkpoint() is None
        folder.finish({})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "training.json"]


@pytest.mark.slow
def test_a_training_killed_as_it_writes_the_head_is_continued(tmp_path: Path) -> None:
    killed_finishing(tmp_path, "os.rename", "model.safetensors")
    (left,) = leftovers(tmp_path)
    assert intended_name(left.name) == "model.safetensors"
    folder = HeadFolder(tmp_path, {"recipe": {"seed": 0}})
    with folder.held():
        assert folder.texts() == [([2], [3])]
        folder.finish({"model.safetensors": b"weights"})
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.slow
def test_what_nobody_knows_the_facts_of_is_not_continued(interrupted: Path, target: Any, tmp_path: Path) -> None:
    shutil.copytree(interrupted, tmp_path / "head")
    (tmp_path / "head" / "unfinished" / "facts.json").unlink()
    recipe = HeadRecipe(epochs=1, vocabulary=20)
    trained(target, tmp_path / "head", source=SHORT, recipe=recipe)
    trained(target, tmp_path / "whole", source=SHORT, recipe=recipe)
    assert weights(tmp_path / "head") == weights(tmp_path / "whole")


@pytest.mark.slow
def test_a_finished_head_is_replaced(target: Any, tmp_path: Path) -> None:
    trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1))
    first = weights(tmp_path / "head")
    trained(target, tmp_path / "head", recipe=HeadRecipe(epochs=1, seed=1))
    assert weights(tmp_path / "head") != first


# --- refusals ----------------------------------------------------------------------------------------


def test_an_unfinished_training_of_something_else_is_refused(interrupted: Path, target: Any) -> None:
    kept = (interrupted / "unfinished" / "texts.jsonl").read_bytes()
    others: list[tuple[dict[str, Any], str]] = [
        ({"source": Source("words", PROMPTS[:-1], 12)}, "source.problems is 70, not 69"),
        ({"recipe": HeadRecipe(epochs=3, batch_size=8)}, "recipe.epochs is 2, not 3"),
        ({"recipe": HeadRecipe(epochs=2, batch_size=8, layers=(1, 2))}, "recipe.layers is [2, 4, 5], not [1, 2]"),
    ]
    for changes, difference in others:
        assert usage_error(partial(trained, target, interrupted, **changes)) == (
            f"out {str(interrupted)!r} holds an unfinished training whose {difference}; choose another folder, or "
            f"remove {str(interrupted / 'unfinished')!r}"
        )
    assert (interrupted / "unfinished" / "texts.jsonl").read_bytes() == kept


def test_folders_of_something_else_are_refused(target: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    message = usage_error(lambda: trained(target, tmp_path))
    assert message == f"out {str(tmp_path)!r} holds 'thesis.tex', which is no head's; choose another"


def test_a_folder_in_the_place_of_the_unfinished_training_is_left_alone(target: Any, tmp_path: Path) -> None:
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "thesis.tex").write_text("")
    assert "holds 'thesis.tex', which is no head's" in usage_error(lambda: trained(target, tmp_path))
    assert (tmp_path / "unfinished" / "thesis.tex").exists()


def test_a_head_that_was_not_trained_here_is_not_overwritten(target: Any, tmp_path: Path) -> None:
    before = files_of(eagle3(target))
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    assert usage_error(lambda: trained(target, tmp_path)) == (
        f"out {str(tmp_path)!r} holds 'config.json' and no training.json, so it is no head that was trained here; "
        "choose another"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def another_state(_: bytes) -> bytes:
    torch.save({"head": {}, "optimiser": {}}, file := io.BytesIO())
    return file.getvalue()


@pytest.mark.thinned(every=7)
@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("facts.json", half),
        ("facts.json", lambda _: b"[1]"),
        ("texts.jsonl", lambda content: b"[[2], [3\n" + content),
        ("texts.jsonl", lambda content: b"\xff\n" + content),
        ("texts.jsonl", lambda content: re.sub(rb"\d+", b"5", content, count=1)),
        ("texts.jsonl", lambda content: content.partition(b"\n")[2]),
        ("checkpoint.pt", half),
        ("checkpoint.pt", lambda _: b""),
        ("checkpoint.pt", lambda _: b"no checkpoint"),
        ("checkpoint.pt", another_state),
    ],
    ids=[
        "half facts",
        "other facts",
        "torn text",
        "no text",
        "another text",
        "a missing text",
        "half state",
        "empty state",
        "no state",
        "other state",
    ],
)
def test_damaged_files_of_an_unfinished_training_are_named(
    name: str, damaged: Callable[[bytes], bytes], interrupted: Path, target: Any, tmp_path: Path
) -> None:
    out = tmp_path / "head"
    shutil.copytree(interrupted, out)
    path = out / "unfinished" / name
    path.write_bytes(damaged(path.read_bytes()))
    message = usage_error(lambda: trained(target, out))
    assert message.startswith(f"{str(path)!r} is damaged: ")
    assert message.endswith(f"; remove {str(out / 'unfinished')!r} to begin anew")


def test_a_folder_in_the_place_of_a_file_is_named_itself(interrupted: Path, target: Any, tmp_path: Path) -> None:
    shutil.copytree(interrupted, tmp_path / "head")
    texts = tmp_path / "head" / "unfinished" / "texts.jsonl"
    texts.unlink()
    texts.mkdir()
    said = usage_error(lambda: trained(target, tmp_path / "head"))
    assert said.startswith(f"{str(texts)!r} is damaged: it is not a regular file; remove ")


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
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number of at least 1"),
        ({"seed": 0.5}, "seed is 0.5; it must be a whole number"),
        ({"learning_rate": 2.0}, "learning_rate is 2.0; it must be a number between 0 and 1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be a number between 0 and 1"),
        ({"layers": (1, 2, 8)}, "layers is '1,2,8'; the target's are numbered from 0 to 7"),
        ({"layers": ()}, "layers is ''; the target's are numbered from 0 to 7"),
        ({"vocabulary": 41}, "vocabulary is 41; the target has 40 tokens"),
    ],
)
def test_recipes_out_of_range_are_refused(changes: dict[str, Any], message: str, target: Any, tmp_path: Path) -> None:
    assert usage_error(lambda: trained(target, tmp_path / "head", recipe=HeadRecipe(**changes))) == message
    assert not (tmp_path / "head").exists()


def test_targets_that_no_head_fits_are_refused_before_decoding(tmp_path: Path) -> None:
    odd = llama(seed=0, layers=3)
    vars(odd.config)["intermediate_size"] = [48, 48, 48]  # one for each layer, as some families have
    narrow = random_model(OPTConfig(**SMALL, word_embed_proj_dim=16), seed=0)
    for target, complaint in ((odd, "the target's sizes are not those of a head: "), (narrow, "16 components")):
        message = usage_error(partial(trained, target, tmp_path / "head", recipe=HeadRecipe(layers=(0, 1))))
        assert complaint in message
        assert message.endswith("; give another target")
        assert not (tmp_path / "head").exists()


@pytest.mark.parametrize("read", ["w39 w2", "w2 w3"], ids=["in texts that are held out", "in those trained on"])
def test_a_loss_that_is_not_finite_stops_the_training(read: str, tmp_path: Path) -> None:
    """The target computes in float64, and what it reads is beyond the head's float32."""
    target = random_model(GPT2Config(**SMALL | {"tie_word_embeddings": False}), seed=0)
    with torch.no_grad():
        target.get_input_embeddings().weight[2 if read == "w2 w3" else 39] *= 1e39
    source = Source("words", ("w39 w4 w5", *[f"w2 w{token}" for token in range(3, 13)]), max_new_tokens=6)
    message = usage_error(
        lambda: trained(target, tmp_path, source=source, recipe=HeadRecipe(layers=(0, 1), learning_rate=0.25))
    )
    assert message == "learning_rate is 0.25, and the loss became nan; give a lower one, and another out"
    assert sorted(path.name for path in (tmp_path / "unfinished").iterdir()) == [".lock", "facts.json", "texts.jsonl"]


def test_too_few_problems_are_refused(target: Any, tmp_path: Path) -> None:
    message = usage_error(lambda: trained(target, tmp_path / "head", source=Source("words", PROMPTS[:1], 12)))
    assert message == "task words has 1 problems for tuning; a head needs at least 2"


def test_steps_that_no_text_is_long_enough_for_are_left_out(target: Any, tmp_path: Path) -> None:
    source = Source("words", tuple(f"w{token}" for token in range(2, 32)), max_new_tokens=2)
    trained(target, tmp_path, source=source, recipe=HeadRecipe(epochs=1))
    (epoch,) = json.loads((tmp_path / "training.json").read_text())["history"]
    for values in (epoch["loss"], epoch["agreement"]):
        assert values[0] is not None
        assert values[1:] == [None, None]
    assert (
        f"| 1 | {epoch['loss'][0]:.3f} | - | - | {epoch['agreement'][0]:.3f} | - | - |"
        in (tmp_path / "card.md").read_text()
    )


@pytest.mark.parametrize("name", ["facts.json", "texts.jsonl", "checkpoint.pt"])
def test_a_pipe_in_the_place_of_a_file_is_named(name: str, interrupted: Path, target: Any, tmp_path: Path) -> None:
    out = tmp_path / "head"
    shutil.copytree(interrupted, out)
    path = out / "unfinished" / name
    path.unlink()
    os.mkfifo(path)
    assert usage_error(lambda: trained(target, out)).startswith(f"{str(path)!r} is damaged: it is not a regular file")
