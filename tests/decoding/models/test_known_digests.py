"""Fingerprints that are known already: of an unchanged object, and of unchanged files; anything else is read again."""

from __future__ import annotations

import gc
import os
import shutil
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fsd_decoding import hub
from fsd_decoding.loading import load_model
from fsd_decoding.models import fingerprint
from fsd_decoding.models import weights_digest as digests
from fsd_decoding.models.fingerprint import family_id, model_fingerprint
from fsd_decoding.models.weights_digest import weights_digest


def model() -> Any:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=257, num_attention_heads=2, **shape)).eval()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models whose weights were read."""
    seen: list[Any] = []

    def read(one: Any, advance: object) -> str:
        seen.append(type(one).__name__)
        return weights_digest(one)

    monkeypatch.setattr(digests, "weights_digest", read)
    return seen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose files may be as new as they are here."""
    monkeypatch.setattr(digests, "_COARSEST_CLOCK", 0)
    model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def fingerprint_of(source: Path | str, dtype: str | None = None) -> str:
    return model_fingerprint(load_model(source, "cpu", dtype))


# Of an object


def test_an_object_is_read_once(reads: list[Any]) -> None:
    one = model()
    assert len({model_fingerprint(one) for _ in range(3)}) == 1
    assert len(reads) == 1
    model_fingerprint(model())  # another object of the same content
    assert len(reads) == 2


def by_optimizer(changed: Any) -> None:
    weight = changed.model.norm.weight
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.1).step()


def by_one_element(changed: Any) -> None:
    with torch.no_grad():
        changed.lm_head.weight[5, 3] += 1


def by_merging(changed: Any) -> None:
    """As adapters are merged: torch counts no write, and the memory is the same."""
    changed.lm_head.weight.data += 0.5


def by_another_tensor(changed: Any) -> None:
    changed.lm_head.weight = torch.nn.Parameter(torch.zeros_like(changed.lm_head.weight))


def by_new_data(changed: Any) -> None:
    changed.lm_head.weight.data = changed.lm_head.weight.data * 2


def by_a_configuration(changed: Any) -> None:
    changed.config.rms_norm_eps = 0.25


EDITS = [by_optimizer, by_one_element, by_merging, by_another_tensor, by_new_data, by_a_configuration]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_object_has_another_fingerprint(edit: Callable[[Any], None]) -> None:
    changed = model()
    before = model_fingerprint(changed)
    edit(changed)
    assert model_fingerprint(changed) != before


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_steps_of_a_fused_optimizer_are_noticed(optimizer: Any) -> None:
    """Fused kernels leave torch's counts as they are; here they change three rows of one embedding alone."""
    trained = model()
    weight = trained.model.embed_tokens.weight
    before, first = model_fingerprint(trained), weight.detach().clone()
    steps = optimizer([weight], lr=1e-2, weight_decay=0.0, fused=True)
    for _ in range(5):
        weight.grad = torch.zeros_like(weight)
        weight.grad[[7, 9, 11], 3:] = 1.0
        steps.step()
        steps.zero_grad()
    assert (weight != first).any(1).sum() == 3
    assert model_fingerprint(trained) != before


def test_a_model_that_holds_gradients_is_read_again(reads: list[Any]) -> None:
    """What trains it may be no optimizer of torch, and write past its counts."""
    trained = model()
    weight = trained.model.embed_tokens.weight
    weight.grad = torch.zeros_like(weight)
    before = model_fingerprint(trained)
    weight.detach().numpy()[7, 3] += 1
    assert model_fingerprint(trained) != before
    weight.grad = None
    model_fingerprint(trained)
    model_fingerprint(trained)
    assert len(reads) == 3


def test_samples_of_an_earlier_version_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    sample = fingerprint._sample

    def counted(tensor: Any) -> bytes:
        read.append(tensor.shape)
        return sample(tensor)

    monkeypatch.setattr(fingerprint, "_sample", counted)
    one = model()
    before = family_id(one)
    count = len(read)
    assert family_id(one) == before
    assert len(read) == count > 0
    by_one_element(one)
    family_id(one)
    assert len(read) == 2 * count


def test_weights_that_count_no_writes_are_read_again(reads: list[Any]) -> None:
    with torch.inference_mode():
        unwatched = model()
        before = model_fingerprint(unwatched)
        unwatched.lm_head.weight[5, 3] += 1
        assert model_fingerprint(unwatched) != before
    assert len(reads) == 2


@pytest.mark.slow
def test_a_known_object_is_not_kept_alive() -> None:
    one = model()
    model_fingerprint(one)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


# Of files


def test_a_checkpoint_is_read_once_a_dtype(folder: Path, reads: list[Any]) -> None:
    assert len({fingerprint_of(folder) for _ in range(3)}) == 1
    assert len(reads) == 1
    assert fingerprint_of(folder, "bfloat16") == fingerprint_of(folder, "bfloat16") == fingerprint_of(folder)
    assert len(reads) == 2
    assert fingerprint_of(folder, "float16") != fingerprint_of(folder)  # its rounding is another


def test_files_just_written_are_read_again(tmp_path: Path, reads: list[Any]) -> None:
    """A later write within the same tick of the file system's clock would leave the same time stamp."""
    model().save_pretrained(tmp_path)
    assert fingerprint_of(tmp_path) == fingerprint_of(tmp_path)
    assert len(reads) == 2


def test_an_edit_in_place_is_noticed_though_size_and_time_are_restored(folder: Path) -> None:
    before, file = fingerprint_of(folder), folder / "model.safetensors"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    with file.open("r+b") as weights:
        weights.seek(-2, os.SEEK_END)
        weights.write(b"\x41\x42")
    os.utime(file, ns=times)
    assert fingerprint_of(folder) != before


def test_an_object_edited_after_loading_is_read(folder: Path) -> None:
    before = fingerprint_of(folder)
    loaded = load_model(folder, "cpu", None)
    with torch.no_grad():
        loaded.lm_head.weight[5, 3] += 1
    assert model_fingerprint(loaded) != before
    assert fingerprint_of(folder) == before  # what is kept for the files is theirs


def test_weights_drawn_at_random_are_not_kept(folder: Path, reads: list[Any]) -> None:
    """A tensor that the file lacks is drawn anew each time the model is loaded."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert fingerprint_of(folder) != fingerprint_of(folder)
    assert len(reads) == 2


def test_shards_outside_the_folder_are_read_again(folder: Path, reads: list[Any]) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "../x.safetensors"}}')
    assert fingerprint_of(folder) == fingerprint_of(folder)
    assert len(reads) == 2


def hub_cache(root: Path, source: Path, blob: str, commit: str = "c" * 40) -> None:
    """A repository `some/model` as the hub's cache keeps it, with this commit as the last one."""
    blobs, snapshot = root / "models--some--model/blobs", root / "models--some--model/snapshots" / commit
    for folder in (blobs, snapshot, root / "models--some--model/refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "models--some--model/refs/main").write_text(commit)
    for number, file in enumerate(sorted(source.iterdir())):
        name = blob if file.suffix == ".safetensors" else f"{number:040}"
        shutil.copy2(file, blobs / name)
        (snapshot / file.name).symlink_to(blobs / name)


def test_blobs_of_the_hub_are_known_by_name(
    folder: Path, tmp_path: Path, reads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, blob in enumerate(["a" * 64, "a" * 64, "b" * 64]):
        hub_cache(tmp_path / str(number), folder, blob)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    known = []
    for number in range(3):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / str(number)))
        known.append(fingerprint_of("some/model"))
    assert len(set(known)) == 1
    assert len(reads) == 2  # the copy of the same blob, with another inode, is not read


def test_another_commit_while_one_is_loaded_is_not_taken_for_it(
    folder: Path, tmp_path: Path, reads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process fetches a new commit after this one has decided on the last."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub_cache(tmp_path, folder, "a" * 64)
    expected, fetch = fingerprint_of(folder), hub.fetch_weights
    edited = load_model(folder, "cpu", None)
    by_one_element(edited)
    edited.save_pretrained(tmp_path / "edited")

    def overtaken(source: str, revision: str | None) -> Path | None:
        fetched = fetch(source, revision)
        hub_cache(tmp_path, tmp_path / "edited", "b" * 64, "d" * 40)
        return fetched

    with monkeypatch.context() as patch:
        patch.setattr("fsd_decoding.loading.fetch_weights", overtaken)
        assert fingerprint_of("some/model") == expected
    assert fingerprint_of("some/model") == model_fingerprint(edited) != expected


# The folder of digests


def kept(cache: Path) -> Path:
    (file,) = (cache / "fingerprints").iterdir()
    return file


def test_digests_are_kept_for_the_user_alone(folder: Path, cache: Path) -> None:
    fingerprint_of(folder)
    assert stat.S_IMODE(kept(cache).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept(cache).parent.stat().st_mode) == 0o700


@pytest.mark.slow
def test_an_empty_digest_is_not_used(folder: Path, cache: Path) -> None:
    before = fingerprint_of(folder)
    kept(cache).write_bytes(b"")
    assert fingerprint_of(folder) == before


def test_a_digest_of_other_files_is_not_used(folder: Path, cache: Path) -> None:
    fingerprint_of(folder)
    content = kept(cache).read_bytes()
    by_optimizer(changed := load_model(folder, "cpu", None))
    changed.save_pretrained(folder)
    kept(cache).unlink()
    expected = fingerprint_of(folder)
    kept(cache).write_bytes(content)  # under the key of the new files
    assert fingerprint_of(folder) == expected


def test_a_cache_that_cannot_be_written_is_done_without(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for unusable in (str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        monkeypatch.setenv("FSD_CALIB_CACHE", unusable)
        assert fingerprint_of(folder) == model_fingerprint(model())
