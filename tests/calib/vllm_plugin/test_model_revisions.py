"""Which revision of a model a server was asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from huggingface_hub import ResolvedRevision

from fsd_calib.vllm_plugin.speculation import asked_revision


@pytest.mark.parametrize(
    ("revision", "asked"),
    [(None, None), (ResolvedRevision(initial=None, resolved="a" * 40), None), ("main", "main"),
     (ResolvedRevision(initial="v2", resolved="a" * 40), "v2")],
    ids=["local", "default", "text", "given"],
)  # fmt: skip
def test_a_resolved_default_is_no_revision_that_was_given(revision: str | None, asked: str | None) -> None:
    """vLLM resolves the revision of every model of the hub, so weights would never be compared."""
    assert asked_revision(SimpleNamespace(revision=revision)) == asked
