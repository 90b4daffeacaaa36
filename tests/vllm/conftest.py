"""What tests of the plugin get: vLLM's settings for a small CPU, and a mend of its sampling there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# vLLM looks at them when it is first imported, and processes that tests start inherit them.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="WARNING", VLLM_USE_V2_MODEL_RUNNER="0",
)  # fmt: skip


def pytest_collect_file() -> None:
    """Skips this folder where vLLM is not installed. A plain `vllm` would be found: this folder, by its name."""
    pytest.importorskip("vllm.version", reason="vLLM has an environment of its own: sh install.sh vllm")


@pytest.fixture(scope="class")
def mended_expansion() -> Iterator[None]:
    """vLLM's expansion of temperatures, which 0.32 leaves uninitialised on a CPU, mended in this process."""
    from vllm.v1.sample import rejection_sampler

    from support.vllm_mend import fsd_vllm_mend

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rejection_sampler, "expand_batch_to_tokens", rejection_sampler.expand_batch_to_tokens)
        fsd_vllm_mend.register()
        yield
