"""The words that options take, for help and completion: known here without importing what they name."""

from __future__ import annotations

RULES_WITH_T = ("fsd", "fsd-sd", "fsd-coupled")
RULES = ("sd", "coupled", *RULES_WITH_T, "typical", "ensemble")
DIVERGENCES = ("js", "ag", "kl_qp", "kl_pq", "tv", "hellinger", "doubt")
POLICIES = ("constant", "schedule", "entropy", "per-prompt")
DRAFTERS = ("model", "eagle", "ngram", "auto")
ENGINES = ("fsd-calib", "vllm")
DTYPES = ("float32", "bfloat16", "float16")
