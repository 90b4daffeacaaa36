"""The printed report as a whole: its effort line, and usage lines that can be copied."""

from __future__ import annotations

from pathlib import Path

from fsd_calib.report.console import usage
from fsd_calib.report.diff import difference_table, differences
from support.calibration.profiles import profile
from support.calibration.reports import paper, printed, printed_details, text_of


def test_effort_is_one_line() -> None:
    line = "decoded 3,412 problems (0.21 M tokens), reused 9,120 (timing not counted)"
    assert line in printed().splitlines()


def test_lines_to_copy_are_not_broken() -> None:
    path = Path("a rather long folder name that no table would leave in one line") / "profile.json"
    lines = printed(path=path).splitlines()
    assert f"fsd-generate --profile '{path}' 'your question'" in lines
    code = usage(profile(), path).split("\n\n")[1]
    assert set(code.splitlines()) <= set(lines)
    compile(code, "usage", "exec")


def test_a_report_ends_with_the_page_where_there_is_one(tmp_path: Path) -> None:
    assert "report.html" not in printed(path=tmp_path / "profile.json")
    (tmp_path / "report.html").touch()
    assert printed(path=tmp_path / "profile.json").splitlines()[-1].endswith(str(tmp_path / "report.html"))


def test_no_table_breaks_a_word_at_80_columns() -> None:
    """Names are broken where they have a mark: rows that differ in their drafts must differ on paper."""
    name, path = "Qwen/Qwen2.5-0.5B-Instruct-of-a-long-name", "fsd-profile/arithmetic/with-a-long-name/profile.json"
    drafts = {f"curve.{place}.setting.draft": name for place in range(5)}
    text = printed_details({"draft.id": name, **drafts})
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "Qwen2.5-0.5B-" in text.split()
    other = profile({"certificate.difference": -1 / 700, "certificate.difference_interval": [-0.02, 0.01]})
    console = paper()
    console.print(difference_table(differences(profile(), other), (path, "b"), console.width))
    assert {"fsd-profile/arithmetic/", "with-a-long-name/", "difference_interval"} <= set(text_of(console).split())
