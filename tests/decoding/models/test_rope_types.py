"""Refusal of rotary encodings that transformers does not compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fsd_decoding.loading import load_model
from fsd_decoding.models.forward import unknown_rope_type
from support.messages import usage_error
from support.models.tiny_models import llama


@pytest.mark.parametrize("entry", ["rope_parameters", "rope_scaling"])
def test_known_types_are_accepted(entry: str) -> None:
    for kind in ("default", *ROPE_INIT_FUNCTIONS):
        assert unknown_rope_type({entry: {"rope_type": kind}}) is None
        assert unknown_rope_type({entry: {"type": kind}}) is None
    assert unknown_rope_type({entry: {"rope_theta": 1e4}}) is None
    assert unknown_rope_type({entry: None}) is None


def test_types_may_differ_by_kind_of_layer() -> None:
    parts = {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}
    assert unknown_rope_type({"rope_parameters": parts}) is None
    parts["sliding_attention"] = {"rope_type": "bend"}
    assert "rope_type 'bend'" in str(unknown_rope_type({"rope_parameters": parts}))


@pytest.mark.parametrize("kind", ["bend", "two\nlines"])
def test_a_model_of_another_type_is_refused_by_name(kind: Any, tmp_path: Path) -> None:
    llama(seed=0).save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rope_parameters": {"rope_type": kind}}))
    message = usage_error(lambda: load_model(tmp_path, "cpu", None))
    assert f"rope_parameters has rope_type {kind!r} in its config.json; it must be one of default, dynamic, " in message
    assert message.startswith(f"model at {str(tmp_path)!r} cannot be loaded: ")
    assert message.endswith(": correct it, or install a version of transformers that knows it")
