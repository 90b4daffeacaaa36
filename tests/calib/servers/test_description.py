"""How a server is described: what is refused, how values stand in requests, and that no secret is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.calibration.run_file import read_run_file
from fsd_calib.options.server import ServerDescription, merged, parse_slo, with_value
from fsd_common.errors import UsageError
from server_schema import schema_text
from support.paths import DOCS

KNOB = {"name": "fsd_threshold", "values": [0.1, 0.5], "request": {"vllm_xargs": {"fsd_threshold": "{T}"}}}
SERVER = {"url": "http://localhost:8000/v1", "model": "m", "knob": KNOB, "reference": {"value": 0.1}}


def described(tmp_path: Path, **changes: Any) -> ServerDescription:
    file = tmp_path / "server.yaml"
    file.write_text(yaml.safe_dump({"server": {**SERVER, **changes}}))
    found: ServerDescription = read_run_file(file).job["server"]
    return found


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"url": "localhost:8000"}, "must begin with http"),
        ({"url": "http://me:secret@host/v1"}, "send them as a header"),
        ({"headers": {"Authorization": "Bearer abc"}}, r"write it as \$\{NAME\}"),
        ({"knob": {**KNOB, "values": [0.1, 0.5, 0.3]}}, "rise or fall throughout"),
        ({"knob": {**KNOB, "range": {"first": 0, "last": 1, "count": 3}}}, "either values or range"),
        ({"knob": {**KNOB, "request": {"vllm_xargs": {"fsd_threshold": 0.1}}}}, r"has no \{T\}"),
        (
            {"knob": {**KNOB, "live": {"url": "http://a", "body": {"x": "{T}"}}}},
            "exactly one of request, live and restart",
        ),
        ({"reference": {}}, "exactly one of request, value and url"),
        ({"reference": {"value": 0.1, "url": "http://b/v1"}}, "exactly one of request, value and url"),
        ({"tokenizer": "folder"}, "endpoint is chat"),
        ({"knob": None}, "there is no knob"),
        ({"speed": 3}, "the keys there are url, model"),
    ],
)
def test_what_contradicts_itself_is_refused_in_a_line(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule) as refused:
        described(tmp_path, **changes)
    assert "\n" not in str(refused.value)


def test_headers_are_those_of_the_environment_and_are_not_part_of_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = described(tmp_path, headers={"Authorization": "Bearer ${API_KEY}"})
    monkeypatch.setenv("API_KEY", "secret")
    assert server.sent_headers() == {"Authorization": "Bearer secret"}
    assert "secret" not in server.model_dump_json()
    monkeypatch.delenv("API_KEY")
    with pytest.raises(ValueError, match="API_KEY"):
        server.sent_headers()


@given(value=st.floats(-1e6, 1e6, allow_nan=False))
def test_a_value_stands_as_a_number_where_it_is_alone_and_within_texts_else(value: float) -> None:
    written = with_value({"a": "{T}", "b": ["serve --t {T}", 3, {"c": "{T}"}]}, value)
    assert written["a"] == value
    assert written["b"][0] == f"serve --t {int(value) if value.is_integer() else value}"
    assert written["b"][1:] == [3, {"c": value}]


def test_ladders_may_fall(tmp_path: Path) -> None:
    knob = {**KNOB, "range": {"first": 1.0, "last": 0.2, "count": 5}, "values": None}
    server = described(tmp_path, knob=knob, reference={"value": 1.0})
    assert server.knob is not None
    assert server.knob.ladder == (1.0, 0.8, 0.6, 0.4, 0.2)


def test_objects_within_bodies_are_merged() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "e": 5}) == {"a": {"b": 1, "c": 4}, "d": 3, "e": 5}


def test_a_service_level_is_read() -> None:
    assert parse_slo("ttft=500ms, itl=0.05s") == {"ttft": 0.5, "itl": 0.05}


@pytest.mark.parametrize("text", ["", "ttft", "ttft=5", "ttft=0ms", "ttft=1s,ttft=2s", "e2e=1s"])
def test_what_is_no_service_level_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it as"):
        parse_slo(text)


def test_the_schema_for_editors_is_up_to_date() -> None:
    assert (DOCS / "server.schema.json").read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("title", ["server", "sglang", "fly", "tensorrt_llm", "llama_cpp", "tune"])
def test_the_examples_of_the_page_are_descriptions(tmp_path: Path, title: str) -> None:
    page = (DOCS / "servers.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf'```yaml title="{title}.yaml"\n(.*?)```', page, flags=re.DOTALL)
    file = tmp_path / "example.yaml"
    file.write_text(text)
    assert isinstance(read_run_file(file).job["server"], ServerDescription)
