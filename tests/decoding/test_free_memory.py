"""What memory a device has left, as the system and the control group say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsd_decoding import free_memory
from fsd_decoding.free_memory import available


def test_the_cpu_has_what_the_system_says() -> None:
    free = available("cpu")
    assert free is None or 0 < free < 1 << 50


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"memory.max": "max", "memory.current": "5"}, None),
        ({"memory.max": "100", "memory.current": "60", "memory.stat": "anon 30\ninactive_file 20\nactive_file 5"}, 65),
        ({"memory.max": "100", "memory.current": "160", "memory.stat": ""}, 0),
        ({"memory/memory.limit_in_bytes": "100", "memory/memory.usage_in_bytes": "30"}, 70),
        ({}, None),
    ],
)
def test_the_limit_of_a_control_group_counts(files: dict[str, str], left: int | None, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert free_memory._left_in_group(tmp_path) == left
