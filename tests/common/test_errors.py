"""Errors of libraries, which may span several lines, as part of a message of one line."""

from __future__ import annotations

import json
from pathlib import Path

from fsd_common.errors import in_one_line
from fsd_decoding.loading import load_config
from support.messages import usage_error
from support.models.tiny_models import FAMILIES


def test_lines_are_joined_and_cut() -> None:
    assert in_one_line(ValueError("one:\n   two.\n")) == "one: two"
    assert in_one_line(EOFError()) == "EOFError"
    assert in_one_line(ValueError("x" * 1000)) == "x" * 300


def test_what_is_wrong_with_a_configuration_is_told_whole(tmp_path: Path) -> None:
    """transformers names the field in the first line, and what is wrong with it in the next."""
    values = FAMILIES["llama"].to_dict() | {"num_attention_heads": "four"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    message = usage_error(lambda: load_config(tmp_path))
    assert "'num_attention_heads': TypeError: Field 'num_attention_heads' expected int, got str" in message
