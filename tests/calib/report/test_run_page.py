"""The page of a calibration, its record, and `fsd-report`: written, rebuilt, compared, and looked at in a browser."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsd_calib import Telemetry, ThresholdProfile, calibrate
from fsd_calib.cli import report as report_app
from fsd_calib.cli.console import run
from fsd_calib.report.charts import Room, draft_alone
from fsd_calib.report.page import run_page
from fsd_calib.report.record import RunRecord
from fsd_calib.report.rows import rows
from fsd_calib.report.run_folder import Run, load_run
from fsd_calib.tasks import Task
from fsd_collectors.report.plot import plot
from fsd_collectors.store.reading import load_traces
from fsd_common.errors import UsageError
from fsd_common.pages.markdown import markdown
from fsd_common.pages.page import html
from fsd_common.pages.themes import plain
from fsd_common.terminal import visible
from fsd_decoding.profile.io import digest_of
from support.browsers import PHONE, Looked
from support.calibration.damage import ACTING, NUMBERS, edited, leaves
from support.calibration.profiles import profile
from support.calibration.reports import OUTCOMES
from support.models.tiny_calibration import far_apart, task
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import tiny_decoder
from support.traces.rows import manifest, write

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
EVIL = "<script>document.title = 'taken over'</script> \u202edesrever\x1b[31m"
SECTIONS = ("verdict", "speed", "threshold", "search", "lengths", "shares", "effort", "settings", "differing",
            "provenance")  # fmt: skip


def hostile_task() -> Task:
    """A task whose texts try to act on a page."""
    tiny = task(160)
    problems = (
        replace(p, question=f"{EVIL} {p.question}", reference="</script><img src='http://host.invalid/a.png'>")
        for p in tiny.problems
    )
    return replace(tiny, problems=tuple(problems))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a calibration in seconds."""
    torch.set_num_threads(1)
    out, cache = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("cache")
    target, draft = far_apart()
    calibrate(
        hostile_task(), target, draft, tokenizer=word_tokenizer(), out=out, cache=cache, state=cache, min_acc=0.5,
        serve_batch=8, draft_length=(2, 4), score=("js", "tv"), trials=4,
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def record(folder: Path) -> RunRecord:
    found = load_run(folder).record
    assert found is not None
    return found


def sealed(content: dict[str, Any]) -> str:
    """A record as a calibration would write it."""
    return json.dumps(content | {"digest": digest_of(content)})


def rewrite(folder: Path, content: dict[str, Any]) -> None:
    (folder / "run.json").write_text(sealed(content), encoding="utf-8")


def report(*arguments: str | Path) -> int:
    return run(report_app.app, report_app.NAME, [str(argument) for argument in arguments])


# What a calibration writes


def test_a_calibration_writes_its_page_and_the_page_can_be_made_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = (folder / "report.html").read_text(encoding="utf-8")
    assert report(folder) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text(encoding="utf-8") == written


def test_the_record_agrees_with_the_profile(folder: Path, record: RunRecord) -> None:
    profile = ThresholdProfile.load(folder)
    assert record.profile == profile.digest
    assert profile.effort is not None
    assert len(record.trials) == profile.effort.trials > 0
    assert [step.name for step in record.steps] == ["preparation", "baseline", "search", "certification", "timing"]
    assert all(step.seconds > 0 for step in record.steps)
    tested = [rung for rung in record.rungs if rung.counts is not None]
    assert tested
    assert profile.certificate.lower_bound in [rung.lower_bound for rung in tested]


def test_tokens_make_up_the_text_and_fuzzy_ones_tell_their_score(record: RunRecord) -> None:
    told = [each for each in record.differences.shown if each.sources]
    assert told
    assert all("".join(token.text for token in each.sources) == each.chosen.text for each in told)
    fuzzy = [token.says for each in told for token in each.sources if token.source == "fuzzy"]
    assert fuzzy
    assert all(re.search(r"D = \S+ ≤ T = ", says) for says in fuzzy)


def test_the_draft_alone_is_measured_beside_the_target_and_timed(folder: Path, record: RunRecord) -> None:
    profile, alone = ThresholdProfile.load(folder), record.draft_alone
    assert alone is not None
    baseline = next(p for p in profile.curve if p.setting.rule == "target" and p.source == "tuning")
    assert alone.point.counts is not None
    assert baseline.counts is not None
    assert alone.point.problems == alone.point.counts.total == baseline.problems
    assert alone.point.counts.right == baseline.counts.right
    assert alone.speed_interval is not None
    assert alone.speed_interval[0] <= (alone.speed or 0.0) <= alone.speed_interval[1]
    assert "draft" not in {point.setting.rule for point in profile.curve}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert re.search(r"<t[dh][^>]*>draft alone<", page)
    assert f"The draft alone was measured on {alone.point.problems} tuning problems" in page


def test_the_draft_alone_that_was_not_timed_is_in_the_table_only(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "profile.json", tmp_path)
    content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    content["draft_alone"] |= {"speed": None, "speed_interval": None}
    rewrite(tmp_path, content)
    page = html(run_page(load_run(tmp_path)))
    assert "The draft alone is not a mark, since it was not timed" in page
    assert re.search(r"<t[dh][^>]*>draft alone<", page)


@pytest.mark.parametrize(
    ("room", "label"),
    [(Room(1e9, 0.0, 200.0), "draft"), (Room(1e9, 199.0, 200.0), r"draft \S+% ↓"),
     (Room(1e-3, 0.0, 200.0), r"draft \S+% →"), (Room(1e-3, 199.0, 200.0), r"draft \S+% ↘")],
)  # fmt: skip
def test_the_draft_alone_is_at_the_edge_where_it_lies_beyond(folder: Path, room: Room, label: str) -> None:
    run = load_run(folder)
    assert run.record is not None
    mark = draft_alone(rows(run), run.record, room)
    assert mark is not None
    assert re.fullmatch(label, mark["label"])
    assert room.low <= mark["kept"] <= room.high
    assert mark["speed"] <= 2 * room.fastest
    assert "low" not in mark or room.low <= mark["low"]


def test_what_was_lost_comes_first(record: RunRecord) -> None:
    kinds = [(each.chosen.correct - each.target.correct) for each in record.differences.shown]
    order = {-1: 0, 1: 1, 0: 2}
    assert [order[kind] for kind in kinds] == sorted(order[kind] for kind in kinds)
    assert record.differences.texts >= len(kinds) > 0


# fsd-report


def test_a_profile_alone_has_a_page_that_says_what_is_missing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "profile.json", tmp_path)
    assert report(tmp_path) == 0
    assert "there is no run.json beside the profile" in capsys.readouterr().err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("there is no run.json beside the profile") > 3
    assert "Certified at 95% confidence" in page


def test_a_record_of_another_profile_is_not_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "profile.json", tmp_path)
    content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    rewrite(tmp_path, content | {"profile": "0" * 64})
    found = load_run(tmp_path)
    assert found.record is None
    assert "another profile" in found.lacks


def test_a_record_that_was_changed_is_not_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "profile.json", tmp_path)
    text = (folder / "run.json").read_text(encoding="utf-8")
    for changed in (
        text.replace('"correct": true', '"correct": false', 1),
        text.replace('"digest": "', '"digests": "'),
    ):
        assert changed != text
        (tmp_path / "run.json").write_text(changed, encoding="utf-8")
        found = load_run(tmp_path)
        assert found.record is None
        assert found.lacks == "the run.json beside the profile was changed after it was written"


def test_a_record_with_values_that_no_calibration_writes_is_refused_or_shown(folder: Path, tmp_path: Path) -> None:
    """Of each list the first and the last item, and of differing problems two."""
    shutil.copy(folder / "profile.json", tmp_path)
    content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    content["differences"]["shown"] = content["differences"]["shown"][:2]
    shown, refusals = 0, ""
    for path, value in leaves(content):
        for extreme in (ACTING if isinstance(value, str) else NUMBERS) if path[0] not in ("profile", "digest") else ():
            rewrite(tmp_path, edited(content, path, extreme))
            try:
                page = run_page(load_run(tmp_path))
            except UsageError as refused:
                refusals += str(refused)
                continue
            json.dumps([plain(chart.spec) for chart in page.charts], allow_nan=False)
            text = markdown(page, lambda chart: chart.name)
            assert text == visible(text)
            shown += 1
    assert shown > 20
    assert refusals.isprintable()


@pytest.mark.parametrize("damage", ["{", '{"version": 2}', "[]", sealed({"version": 1, "goal": {}}), "\udcff"])
def test_a_damaged_record_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    shutil.copy(folder / "profile.json", tmp_path)
    (tmp_path / "run.json").write_bytes(damage.encode(errors="surrogateescape"))
    assert report(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run.json" in line


def test_pictures_need_no_browser(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starts = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF-"}
    names = {chart.name for chart in run_page(load_run(folder)).charts}
    for kind, start in starts.items():
        assert report(folder, "--format", kind, "--out", tmp_path / kind) == 0
        written = [Path(line) for line in capsys.readouterr().out.splitlines()]
        assert {path.stem for path in written} == names
        assert all(path.suffix == f".{kind}" and path.read_bytes().startswith(start) for path in written)


def test_csv_has_every_setting_that_was_measured(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    assert report(folder, tmp_path / "other", "--format", "csv", "--out", tmp_path / "all.csv") == 0
    points = ThresholdProfile.load(folder).curve
    lines = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert [line["run"] for line in lines] == [name for name in (folder.name, "other") for _ in points]
    for line, point in zip(lines, points, strict=False):
        assert float(line["retention"]) == point.retention
        assert line["threshold"] == ("" if point.setting.threshold is None else str(point.setting.threshold))
        assert point.counts is None or int(line["lost"]) == point.counts.lost


def test_csv_of_nothing_is_refused_in_a_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((folder / "profile.json").read_text())
    (tmp_path / "profile.json").write_text(json.dumps(content | {"curve": []}))
    assert report(tmp_path, "--format", "csv") == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("no setting was measured; there is nothing to write")


def test_markdown_has_the_verdict_the_tables_and_its_pictures(folder: Path, tmp_path: Path) -> None:
    assert report(folder, "--format", "md", "--out", tmp_path / "report.md") == 0
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "**Certified.** Asked for the fastest setting that keeps at least 50% of the target's accuracy" in text
    assert all((tmp_path / link).exists() for link in re.findall(r"\]\((pictures/[^)]+)\)", text))
    assert "| setting | part |" in text
    assert "\x1b" not in text


def test_several_runs_are_compared(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under names that are those of colours, or nearly."""
    others = tmp_path / "@first", tmp_path / "@other"
    for other in others:
        shutil.copytree(folder, other)
    out = tmp_path / "comparison.html"
    assert report(folder, *others, "--out", out) == 0
    page = out.read_text(encoding="utf-8")
    assert "Comparison of 3 calibrations" in page
    assert "Nothing differs in settings and models" in page
    assert report(*others, "--format", "svg", "--out", tmp_path) == 0
    assert "@other" in (tmp_path / "speed.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["profile.json", "run.json", "pipe", "."])
def test_a_page_takes_the_place_of_nothing_else(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shutil.copy(folder / "profile.json", tmp_path)
    shutil.copy(folder / "run.json", tmp_path)
    os.mkfifo(tmp_path / "pipe")
    before = (tmp_path / "profile.json").read_bytes()
    assert report(tmp_path, "--out", tmp_path / name) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "profile.json", "run.json"]
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "profile.json").read_bytes() == before


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere", "--format", "xlsx"], []])
def test_bad_input_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert report(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fsd-report: error: ")


def test_a_page_that_cannot_be_written_loses_no_profile(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in the place of the page is the failure."""
    torch.set_num_threads(1)
    (tmp_path / "report.html").mkdir()
    target, draft = far_apart()
    profile = calibrate(
        task(60), target, draft, tokenizer=word_tokenizer(), out=tmp_path, cache=tmp_path / "cache",
        state=tmp_path / "cache", min_acc=0.5, explore=True, timing="none", draft_length=2, score="js",
        trials=1,
    )  # fmt: skip
    assert ThresholdProfile.load(tmp_path) == profile


def test_an_edited_profile_is_not_called_certified(folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    (tmp_path / "profile.json").write_text(json.dumps(content | {"seed": 99}), encoding="utf-8")
    page = html(run_page(load_run(tmp_path)))
    assert "Edited: not certified" in page
    assert "nothing is certified" in page


def test_texts_are_no_markup(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert EVIL[:8] not in page.split("<main>")[1].split("</main>")[0]
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;document.title" in page
    assert "\\u202edesrever\\x1b[31m" in page


# In a browser


@pytest.fixture(scope="module")
def looked(browser: Browser, folder: Path) -> Iterator[Looked]:
    opened = Looked(browser, folder / "report.html")
    yield opened
    opened.close()


def test_it_has_every_section_draws_every_chart_and_asks_for_nothing(looked: Looked, folder: Path) -> None:
    assert tuple(looked.page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")) == SECTIONS
    assert looked.page.locator(".chart svg").count() == len(run_page(load_run(folder)).charts) > 5
    assert looked.said == []
    assert looked.asked == []
    assert looked.page.title() == "Calibration of tiny"  # no script of a text has run


def test_hovering_over_a_mark_tells_its_setting(looked: Looked, folder: Path) -> None:
    """Over the chosen one too, which has a ring."""
    chosen = ThresholdProfile.load(folder)
    marks = looked.page.locator("#chart-speed path[aria-roledescription=point]")
    (mark,) = [
        mark for mark in marks.all()
        if f"T: {chosen.threshold:.4g}; " in (label := mark.get_attribute("aria-label") or "") and "timed" in label
    ]  # fmt: skip
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    assert box is not None
    looked.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    told = looked.page.locator("#vg-tooltip-element.visible")
    told.wait_for()
    rows = dict(zip(*(told.locator(f"td.{name}").all_inner_texts() for name in ("key", "value")), strict=True))
    assert (rows["T"], rows["L"]) == (f"{chosen.threshold:.4g}", str(chosen.draft_length))
    assert (rows["score"], rows["policy"]) == (chosen.score, "constant T")
    assert ", lower bound " in rows["retention"]


def test_hovering_over_a_fuzzy_token_tells_its_score(looked: Looked) -> None:
    token = looked.page.locator("details[open] .token.fuzzy").first
    token.scroll_into_view_if_needed()
    token.hover()
    assert "D = " in token.evaluate("element => getComputedStyle(element, '::after').content")


def test_a_click_on_a_heading_sorts_and_another_one_reverses(looked: Looked) -> None:
    heading = looked.page.locator("#settings th button", has_text="retention")
    heading.click()
    rising = [float(text.rstrip("%")) for text in looked.column("#settings", 5)]
    heading.click()
    falling = [float(text.rstrip("%")) for text in looked.column("#settings", 5)]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    looked.page.locator("#settings th:nth-child(3) button").click()
    thresholds = looked.column("#settings", 3)
    assert "–" in thresholds
    assert thresholds.index("–") == len([text for text in thresholds if text != "–"])  # what has none comes last


def test_both_themes_differ_in_paper_ink_and_charts(looked: Looked) -> None:
    def look() -> tuple[str, ...]:
        axis = looked.page.eval_on_selector("#chart-speed .role-axis-title text", "e => e.getAttribute('fill')")
        return looked.style("body", "backgroundColor"), looked.style("body", "color"), axis

    before = look()
    looked.page.locator("#theme").click()
    looked.page.wait_for_timeout(300)
    assert all(a != b for a, b in zip(before, look(), strict=True))
    looked.page.locator("#theme").click()
    looked.page.wait_for_timeout(300)
    assert look() == before


def test_on_a_dark_phone_nothing_is_wider_than_the_screen(browser: Browser, folder: Path) -> None:
    phone = Looked(browser, folder / "report.html", "dark", PHONE)
    assert phone.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    wide = "all => all.filter(s => s.getBoundingClientRect().right > innerWidth + 1).length"
    assert phone.page.eval_on_selector_all(".chart svg, .chart svg text", wide) == 0
    assert phone.style("body", "backgroundColor") == "rgb(20, 23, 28)"
    assert phone.said == []
    phone.close()


def test_the_comparison_and_the_page_of_a_profile_alone_draw_too(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    shutil.copy(folder / "profile.json", tmp_path)
    assert report(tmp_path) == 0
    named = tmp_path / "@other"
    shutil.copytree(folder, named)
    assert report(folder, named, "--out", tmp_path / "comparison.html") == 0
    for name in ("report.html", "comparison.html"):
        opened = Looked(browser, tmp_path / name)
        assert opened.page.locator(".chart svg").count() > 0
        assert (opened.said, opened.asked) == ([], [])
        opened.close()


@pytest.mark.parametrize("changes", OUTCOMES)
def test_every_outcome_has_a_page_that_draws(browser: Browser, changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html(run_page(Run("x", profile(changes), lacks="y"))), encoding="utf-8")
    opened = Looked(browser, tmp_path / "page.html")
    assert (opened.said, opened.asked) == ([], [])
    assert opened.page.locator("#verdict .lead").inner_text().startswith("Asked for the ")
    opened.close()


def test_pages_of_traces_and_of_telemetry_draw_too(browser: Browser, tmp_path: Path) -> None:
    plot(load_traces(write(tmp_path / "run", manifest(24))), tmp_path)
    telemetry = Telemetry()
    tiny_decoder().generate(["w1 w2"], 12, observer=telemetry)
    for page in (tmp_path / "index.html", telemetry.save(tmp_path / "telemetry.html")):
        opened = Looked(browser, page, "dark", PHONE)
        assert (opened.said, opened.asked) == ([], [])
        assert opened.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        opened.close()
