"""The parts of pages: themes that can be read, texts that are no markup, the script of charts and its cache."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fsd_common.pages import page as pages
from fsd_common.pages.blocks import Page, Paragraph, Section, Sheet
from fsd_common.pages.charts import Chart, layered
from fsd_common.pages.markdown import markdown, table
from fsd_common.pages.page import html
from fsd_common.pages.pictures import png, svg
from fsd_common.pages.themes import DARK, LIGHT, SERIES, THEMES, Theme

DOT = Chart("dot", "A dot.", layered([{"x": 1, "label": "\u202eleft"}], [{
    "mark": {"type": "text", "color": "@first"},
    "encoding": {"x": {"field": "x", "type": "quantitative"}, "text": {"field": "label"}},
}]))  # fmt: skip


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES.values(), ids=list(THEMES))
def test_texts_and_marks_stand_out_from_their_background(theme: Theme) -> None:
    colours = asdict(theme)
    for paper in (theme.paper, theme.card):
        assert all(contrast(colours[role], paper) >= 4.5 for role in ("ink", "quiet", "good", "bad"))
        assert all(contrast(colours[role.removeprefix("@")], paper) >= 3 for role in SERIES)
    assert contrast(theme.ink, theme.fuzzy) >= 4.5


def test_every_text_of_a_page_is_shown_literally() -> None:
    evil = "</script><script>x</script>\u202e\x1b"
    chart = Chart("dot", evil, layered([{"x": evil}], [{"mark": "point", "encoding": {}}]))
    sheet = Sheet(evil, (evil, evil), ((evil, evil),), evil)
    page = html(Page(evil, (Section("a", evil, evil, (chart, sheet, Paragraph(evil))),), evil))
    assert "<script>x" not in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert page.count("&lt;/script&gt;&lt;script&gt;x&lt;/script&gt;\\u202e\\x1b") == 14  # wherever it stands
    shown = json.loads(page.split('id="charts">')[1].split("</script>")[0])
    assert shown["dot"]["data"]["values"] == [{"x": "</script><script>x</script>\\u202e\\x1b"}]


def test_markdown_keeps_cells_in_their_columns_and_texts_out_of_its_markup() -> None:
    cells = table(Sheet("", ("a", "b"), (("x|y", "two\nlines"),)))
    assert cells.splitlines()[2] == r"| x\|y | two lines |"
    sheet = Sheet("", ("*a*", "<b>"), (("_c_", "`d`"),))
    text = markdown(
        Page("*T*", (Section("s", "# S", "", (DOT, sheet, Paragraph("a_b"))),)), lambda chart: f"{chart.name}.svg"
    )
    assert r"# \*T\*" in text
    assert "![A dot.](dot.svg)" in text
    assert r"a\_b" in text
    assert "| \\*a\\* | \\<b\\> |" in text
    assert "| \\_c\\_ | \\`d\\` |" in text


def test_pictures_are_drawn_in_the_colours_of_their_theme() -> None:
    light, dark = svg(DOT).decode(), svg(DOT, DARK).decode()
    assert LIGHT.first in light
    assert DARK.first in dark
    assert DARK.paper in dark
    assert "\\u202eleft" in light
    assert png(DOT).startswith(b"\x89PNG")


def test_the_script_is_kept_and_made_again_where_it_is_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / pages.FOLDER).unlink()
    made = []

    def bundle() -> str:
        made.append(1)
        return "let \u2265 = 1;"

    monkeypatch.setattr(pages, "_bundle", bundle)
    fresh = pages.chart_script.__wrapped__
    assert fresh() == fresh() == "let \u2265 = 1;"
    assert len(made) == 1
    (file,) = (cache / pages.FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert fresh() == "let \u2265 = 1;"
    assert len(made) == 2


def test_the_script_needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv("FSD_CALIB_CACHE", str(tmp_path / "taken"))
    monkeypatch.setattr(pages, "_bundle", lambda: "x")
    assert pages.chart_script.__wrapped__() == "x"
