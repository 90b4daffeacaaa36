"""What manifests say of models."""

from __future__ import annotations

import json

import pytest

from fsd_collectors.collection.run import collect_traces
from fsd_collectors.manifest import Manifest
from support.models import tiny_calibration
from support.models.tiny_pair import saved


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("traces")
    target, draft = saved(folder)
    return collect_traces(
        tiny_calibration.task(8), target=target, draft=draft, out=folder / "out", device="cpu",
        model_kwargs={"attn": "eager"}, draft_model_kwargs={"attn": "sdpa"},
    ).manifest  # fmt: skip


def changed(manifest: Manifest, attention: str) -> Manifest:
    """The manifest with another kind of attention in the target."""
    content = json.loads(manifest.model_dump_json())
    content["target"]["attention"] = attention
    return Manifest.model_validate_json(json.dumps(content))


def test_another_kind_of_attention_is_another_run(manifest: Manifest) -> None:
    assert (manifest.target.attention, manifest.draft.attention) == ("eager", "sdpa")
    assert manifest.difference(changed(manifest, "eager")) is None
    assert manifest.difference(changed(manifest, "sdpa")) == "target.attention 'sdpa', not 'eager'"
