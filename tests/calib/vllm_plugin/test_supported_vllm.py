"""What the plugin looks up in vLLM before it changes anything: here in modules that stand in for vLLM's."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest

from fsd_calib.vllm_plugin import supported_vllm
from fsd_calib.vllm_plugin.supported_vllm import Hook
from fsd_common.errors import UsageError


@dataclass
class Batch:
    rows: int  # a field without a default is no attribute of its class

    def count(self) -> int:
        return self.rows


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("stub_of_vllm")
    module.__dict__["Batch"] = Batch
    monkeypatch.setitem(sys.modules, "stub_of_vllm", module)
    monkeypatch.setattr(supported_vllm, "_COMMON", {"stub_of_vllm": ["Batch"]})


def test_methods_and_fields_are_found() -> None:
    supported_vllm.check_vllm("0.32.0", {"stub_of_vllm": ["Batch.count()", "Batch.rows"]})


@pytest.mark.parametrize(
    ("runner", "missing"),
    [
        ({"stub_of_vllm": ["Batch.count", "Batch.columns"]}, "stub_of_vllm.Batch.columns"),
        ({"stub_of_vllm": ["Runner.sample"]}, "stub_of_vllm.Runner.sample"),
        ({"stub_of_nothing": ["Batch"]}, "stub_of_nothing.Batch"),
        ({"stub_of_vllm": ["Batch.count(rows)"]}, "stub_of_vllm.Batch.count(rows)"),
    ],
    ids=str,
)
def test_a_name_that_vllm_lacks_is_named_in_one_line(runner: dict[str, list[str]], missing: str) -> None:
    with pytest.raises(UsageError) as caught:
        supported_vllm.check_vllm("0.32.0", runner)
    (line,) = str(caught.value).splitlines()
    assert f"has no {missing}," in line


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match=f"vLLM is version {version}"):
        supported_vllm.check_vllm(version, {})


def test_a_runner_has_what_is_used_of_it() -> None:
    runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=[]), execute_model_state=None)
    supported_vllm.check_runner(runner, ["input_batch.req_ids", "execute_model_state"])
    with pytest.raises(UsageError, match=r"SimpleNamespace has no input_batch\.num_prompt_tokens, which") as caught:
        supported_vllm.check_runner(runner, ["input_batch.req_ids", "input_batch.num_prompt_tokens"])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("open_end", [False, True])
@pytest.mark.parametrize("given", [["self", "a", "b"], ["a", "b"]], ids=["method", "function"])
def test_what_a_declared_name_takes(open_end: bool, given: list[str]) -> None:
    hook = Hook.of("Kind.method(a, b, ...)" if open_end else "Kind.method(a, b)")
    assert hook == Hook("Kind.method", ("a", "b"), open_end)
    assert hook.takes(given)
    assert hook.takes([*given, "c"]) == open_end
    assert not hook.takes(given[:-1])
    assert not hook.takes([*given[:-1], "c", "b"])
    assert Hook.of("Kind.method()").takes(["self"])
    assert not Hook.of("Kind.method()").takes(["self", "a"])
    assert Hook.of("Kind.method").takes(given)
