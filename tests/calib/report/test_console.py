"""The printed report as a whole: its effort line, and usage lines that can be copied."""

from __future__ import annotations

from pathlib import Path

from fsd_calib.report.console import usage
from support.calibration.profiles import profile
from support.calibration.reports import printed


def test_effort_is_one_line() -> None:
    assert "decoded 3,412 problems (0.21 M tokens), reused 9,120 decodings" in printed().splitlines()


def test_lines_to_copy_are_not_broken() -> None:
    path = Path("a rather long folder name that no table would leave in one line") / "profile.json"
    lines = printed(path=path).splitlines()
    assert f"fsd-generate --profile '{path}' 'your prompt'" in lines
    code = usage(profile(), path).split("\n\n")[1]
    assert set(code.splitlines()) <= set(lines)
    compile(code, "usage", "exec")


def test_a_report_ends_with_the_page_where_there_is_one(tmp_path: Path) -> None:
    assert "report.html" not in printed(path=tmp_path / "profile.json")
    (tmp_path / "report.html").touch()
    assert printed(path=tmp_path / "profile.json").splitlines()[-1].endswith(str(tmp_path / "report.html"))
