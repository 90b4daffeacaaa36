"""Keys, queries and results for tests of the result cache."""

from __future__ import annotations

from typing import Any

from fsd_calib.engines.base import KeyedPrompt
from fsd_calib.engines.cache_key import CacheKey
from fsd_decoding.engine.result import Result
from fsd_decoding.profile.setting import Setting


def key(dtype: str = "float32", score: str = "js", **changes: Any) -> CacheKey:
    models = {role: {"fingerprint": role, "dtype": dtype} for role in ("target", "draft")}
    values: dict[str, Any] = {
        "setting": Setting("fsd-coupled", score, 5), "criterion": {"on": "raw"}, "models": models,
        "sampling": {}, "seed": None, "max_new_tokens": 256, "stop": [], "engine": {},
    }  # fmt: skip
    return CacheKey(**values | changes)


def result(text: str = "four", lo: float = 0.1, hi: float = 0.3, tokens: int = 7) -> Result:
    return Result(text, list(range(tokens)), 3, 15, 5, 1, (lo, hi), "eos")


KEY = key()
QUERY = KeyedPrompt(5, "2 + 2")
