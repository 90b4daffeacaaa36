"""What tests with vLLM itself get: an environment in which it runs small. Where there is no vLLM they are skipped."""

from __future__ import annotations

import os

import pytest

# vLLM looks at them when it is first imported, and processes that tests start inherit them.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other tests may run beside these
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engines of `LLM` run in the test's process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)


def pytest_collect_file() -> None:
    """Skips this folder where vLLM is not installed. A plain `vllm` would be found: this folder, by its name."""
    pytest.importorskip("vllm.version", reason="vLLM is not installed here: sh install.sh vllm")
