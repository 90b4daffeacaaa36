"""The words that options take, for help and completion: known here without importing what they name."""

from __future__ import annotations

RULES_WITH_T = ("fsd", "fsd-sd", "fsd-coupled")
RULES = ("sd", "coupled", *RULES_WITH_T, "typical", "ensemble")
DIVERGENCES = ("js", "ag", "kl_qp", "kl_pq", "tv", "hellinger", "doubt")
POLICIES = ("constant", "schedule", "entropy", "per-prompt")
DRAFTERS = ("model", "eagle", "ngram", "auto")
ENGINES = ("fsd-calib", "vllm")
TIMINGS = ("run", "careful", "none")
COMPILINGS = ("auto", "off", "capture", "on")
DEVICES = (
    "cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "maia", "ipu", "hip", "ve", "fpga", "vulkan", "meta", "lazy",
    "mkldnn", "opengl", "opencl", "ideep", "privateuseone",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")
