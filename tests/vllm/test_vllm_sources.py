"""Every name that the plugin relies on is in the sources of every supported vLLM, which are read and not imported."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from fsd_calib.vllm_plugin.supported_vllm import DECLARED, MINORS, OF_RUNNER_V1, OF_RUNNER_V2, SUPPORTED, Hook
from support.vllm_sources import WHEELS, Sources, parameters_of, sources_of

NAMES = sorted({(module, name) for table in DECLARED for module, names in table.items() for name in names})
ATTRIBUTES = sorted({(owner, path) for table in (OF_RUNNER_V1, OF_RUNNER_V2) for path, owner in table.items()})


@pytest.fixture(scope="module", params=MINORS)
def sources(request: pytest.FixtureRequest) -> Sources:
    folder = sources_of(request.param)
    if folder is None:
        pytest.skip(
            f"no sources of vLLM {request.param} in {WHEELS}: python tests/support/vllm_sources.py fetches them"
        )
    return Sources(folder)


def test_the_minor_versions_are_those_of_the_range() -> None:
    allowed = SpecifierSet(SUPPORTED)
    assert [f"0.{n}" for n in range(100) if allowed.contains(f"0.{n}.0")] == list(MINORS)


def test_names_and_what_they_take(sources: Sources) -> None:
    missing = []
    for module, written in NAMES:
        hook = Hook.of(written)
        found = sources.find(module, hook.path)
        if found is None or (hook.parameters is not None and not hook.takes(parameters_of(found))):
            missing.append(f"{module}.{written}")
    assert not missing


def test_attributes_of_runners(sources: Sources) -> None:
    owners = [(*owner.rpartition(".")[::2], path.rpartition(".")[2]) for owner, path in ATTRIBUTES]
    assert not [f"{module}.{kind}.{name}" for module, kind, name in owners
                if sources.find(module, f"{kind}.{name}") is None]  # fmt: skip
