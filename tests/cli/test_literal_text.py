"""Names and texts with markup or control characters: shown literally, by every command."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fsd_calib.cli import console, profile, traces
from fsd_calib.cli.console import called_as, say
from fsd_collectors.report.plot import plot
from fsd_collectors.store.reading import load_traces
from fsd_common.progress.bars import Bars
from fsd_common.progress.chosen import Lines
from fsd_common.terminal import visible
from lib.common.forked_programs import environment
from support.calibration.profiles import profile as made_up
from support.calibration.reports import printed, printed_details
from support.paths import ROOT
from support.traces.rows import VALUES, manifest, write

MARKUP = "[/red][bold]x:cat:"
ACTING = "\x1b[31m\x9b5m\x07\r\b\u202e\u2066\x7f"
ESCAPED = r"\x1b[31m\x9b5m\x07\r\x08\u202e\u2066\x7f"
HOSTILE = f"{MARKUP}{ACTING}<script>"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NAMED = {
    "task": HOSTILE, "target.id": HOSTILE, "draft.id": HOSTILE, "device": HOSTILE, "dtype": HOSTILE,
    "data.source": HOSTILE, "versions": {HOSTILE: HOSTILE}, "certificate.method": HOSTILE,
}  # fmt: skip


def run(app: object, *arguments: str | Path) -> int:
    return console.run(app.app, app.NAME, [str(argument) for argument in arguments])  # type: ignore[attr-defined]


def check(text: str) -> None:
    """The hostile name is there, whole and literal, unless a narrow table broke it."""
    assert not ACTS.search(text)
    joined = "".join(text.split())
    assert MARKUP in joined
    assert r"\x1b[31m" in joined


def test_control_characters_become_escapes() -> None:
    assert visible(ACTING) == ESCAPED
    assert visible("tab\t, line\nand [/red] stay; é, ≤, 中 and 👩\u200d🔬 too") == (
        "tab\t, line\nand [/red] stay; é, ≤, 中 and 👩\u200d🔬 too"
    )
    assert visible(os.fsdecode(b"file-\xff")) == r"file-\udcff"


@given(st.text())
def test_no_visible_text_acts(text: str) -> None:
    assert not ACTS.search(visible(text))
    visible(text).encode()
    assert visible(visible(text)) == visible(text)


def test_a_report_is_literal() -> None:
    check(printed(NAMED, width=200))
    check(printed_details(NAMED, width=200))


def test_the_usage_of_a_profile_is_literal() -> None:
    check(printed(width=200, path=Path(HOSTILE.replace("/", "")) / MARKUP))


def test_profiles_and_their_files_are_shown_literally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / HOSTILE.replace("/", "").replace("<script>", "")
    folder.mkdir()
    made_up(NAMED).save(a := folder / "a.json")
    made_up(NAMED | {"task": "other", "device": "x"}).save(b := folder / "b.json")
    assert run(profile, "show", a) == 0
    assert run(profile, "diff", a, b) == 1
    assert run(profile, "validate", a, folder / "missing[/red]") == 2
    said = capsys.readouterr()
    assert not ACTS.search(said.err)
    assert r"missing[/red]" in said.err
    exact = f"{a}: valid\n"  # stdout is no terminal here
    assert said.out.endswith(exact)
    check(said.out.removesuffix(exact))


@pytest.mark.slow
def test_traces_are_described_and_drawn_literally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {"target": {**VALUES["target"], "id": HOSTILE}, "device": HOSTILE}
    folder = write(tmp_path / "run", manifest(16, **named))
    assert run(traces, "describe", folder) == 0
    check(capsys.readouterr().out)
    *_, page = plot(load_traces(folder), tmp_path / "pictures")
    text = page.read_text(encoding="utf-8").partition("</main>")[0]  # after that come our own scripts
    assert "<script>" not in text
    assert not ACTS.search(text)
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("title", [HOSTILE, "[/red]"])
def test_progress_is_literal(title: str) -> None:
    screen, lines = Console(file=io.StringIO(), force_terminal=False, width=200), io.StringIO()
    bars = Bars(screen)
    for progress in (bars, Lines(lines, seconds=0.0)):
        with progress.step(title, 2) as advance:
            advance(1)
            screen.print(bars)
            progress.note(title)
        progress.note(title)
    for stream in (screen.file, lines):
        assert isinstance(stream, io.StringIO)
        assert not ACTS.search(stream.getvalue())
        assert stream.getvalue().count("[/red]") >= 3


PROFILE = "from fsd_calib.cli.profile import main; main()"  # in a process of its own, whose interrupts it ends


def test_errors_and_warnings_are_literal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    called_as("fsd-x")
    say(f"warning: {HOSTILE}\nsecond line")
    command = [sys.executable, "-c", PROFILE, "show", str(tmp_path / HOSTILE.replace("/", ""))]
    shown = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 2
    (first,), (second,) = capsys.readouterr().err.splitlines(), shown.stderr.splitlines()
    assert first.startswith(rf"fsd-x: warning: {MARKUP}\x1b[31m")
    for line in (first, second):
        assert not ACTS.search(line)
    assert "[red][bold]x:cat:" in second


REPLY = "from fsd_calib.cli.console import reply; reply('a\\x1b[31m\\tb\\nc\\r')"


def test_a_result_is_exact_in_a_pipe_and_visible_on_a_terminal() -> None:
    command = [sys.executable, "-c", REPLY]
    piped = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=True).stdout
    assert piped == b"a\x1b[31m\tb\nc\r\n"
    ours, theirs = pty.openpty()
    subprocess.run(command, env=environment(), stdout=theirs, timeout=60, check=True)
    os.close(theirs)
    shown = os.read(ours, 1000).decode()
    os.close(ours)
    assert shown.replace("\r\n", "\n").expandtabs() == "a\\x1b[31m\tb\nc\\r\n".expandtabs()


def test_a_message_is_one_line_in_a_log_and_breaks_between_words_on_a_terminal() -> None:
    words = " ".join(f"word{number:03}" for number in range(30))
    command = [sys.executable, "-c", f"from fsd_calib.cli.console import say; say({words!r})"]
    piped = subprocess.run(command, env=environment(), stderr=subprocess.PIPE, text=True, timeout=60, check=True).stderr
    assert piped == f"fsd: {words}\n"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    subprocess.run(command, env=environment(), stderr=theirs, timeout=60, check=True)
    os.close(theirs)
    lines = os.read(ours, 1000).decode().splitlines()
    os.close(ours)
    assert " ".join(lines) == piped.strip()
    assert 60 < max(map(len, lines)) <= 80


def test_texts_reach_a_terminal_by_these_ways_only() -> None:
    """Each of them escapes: `reply` and `say`, progress, `LiteralConsole` and `literal`."""
    allowed = {
        "fsd_calib/cli/console.py",
        "decoding/fsd_common/progress/chosen.py",
        "decoding/fsd_common/progress/bars.py",
        "decoding/fsd_common/console.py",
    }
    printing = re.compile(r"\bprint\(|\bConsole\(|\bText\(|sys\.std(out|err)\.write")
    of_users = [*ROOT.glob("fsd_calib/**/*.py"), *ROOT.glob("collectors/fsd_collectors/**/*.py"),
                *ROOT.glob("predictors/fsd_predictors/**/*.py")]  # fmt: skip
    found = {
        path.relative_to(ROOT).as_posix()
        for path in of_users
        if any(printing.search(line) for line in path.read_text(encoding="utf-8").splitlines()
               if ".print(" not in line and "CachedText(" not in line)
    }  # fmt: skip
    assert found - allowed == {"fsd_calib/cli/family.py"}  # the version
