"""`fsd-traces` on traces in a folder: its output, its exit codes, and the files it draws."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from PIL import Image

from fsd_calib.cli import traces as traces_app
from fsd_calib.cli.console import run
from support.traces.rows import ON_POLICY, manifest, write


def traces(*arguments: str | Path) -> int:
    return run(traces_app.app, traces_app.NAME, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def along_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("traces") / "run", manifest(40))


@pytest.fixture(scope="module")
def on_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("traces") / "run", manifest(16, **ON_POLICY))


# Verify


def test_sound_traces_verify(along_target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces("verify", along_target) == 0
    assert capsys.readouterr().out == f"{along_target}: sound\n"


def test_verify_says_what_is_still_to_be_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces("verify", write(tmp_path / "run", manifest(24), portions=2)) == 0
    assert "2 of 3 portions" in capsys.readouterr().out


def test_every_damage_is_a_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", manifest(24))
    (folder / "tokens" / "00000.parquet").unlink()
    damaged = folder / "completions" / "00002.parquet"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert traces("verify", folder) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("fsd-traces: damaged: ") for line in lines)
    assert "tokens/00000.parquet" in lines[0]
    assert "completions/00002.parquet" in lines[1]


# Describe


def test_describe_says_what_was_collected(along_target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces("describe", along_target) == 0
    said = capsys.readouterr().out
    for expected in ("along the target", "arithmetic", "greedy", "tuning", "certification", "kl_qp", "same_argmax"):
        assert expected in said


def test_describe_on_policy_names_the_rule(on_policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces("describe", on_policy) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on-policy: fsd-coupled with js ≤ 0.1, 5 tokens a draft" in said
    assert "accepted by the run's rule" in said


# Plot


def test_plot_makes_three_pictures_and_a_page(along_target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces("plot", along_target) == 0
    names = ["separation.png", "substitutions.png", "rounds.png", "index.html"]
    written = [along_target / "pictures" / name for name in names]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in written]
    for path in written[:3]:
        assert_legible(path.read_bytes())
    assert traces("verify", along_target) == 0  # pictures are no damage


def assert_legible(content: bytes) -> None:
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        assert image.format == "PNG"
        assert 1200 <= image.width <= 2400
        assert 600 <= image.height <= 2400
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 20) or ()) > 50  # something is drawn


def test_page_stands_alone_and_says_what_its_charts_show(along_target: Path, tmp_path: Path) -> None:
    assert traces("plot", along_target, "--out", tmp_path / "new" / "folder") == 0
    text = (tmp_path / "new" / "folder" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)=|url\(|@import", text.split("<main>")[1].split("</main>")[0])
    assert "default-src 'none'" in text
    alts = re.findall(r'role="img" aria-label="([^"]*)"', text)
    assert len(alts) == 3
    assert all(len(alt) > 80 for alt in alts)
    for title in ("What was collected", "Splits", "Quantiles of the score D, by agreement of argmax"):
        assert title in text


def test_on_policy_page_says_why_a_chart_is_missing(on_policy: Path, tmp_path: Path) -> None:
    assert traces("plot", on_policy, "--out", tmp_path) == 0
    assert not (tmp_path / "rounds.png").exists()
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert text.count('class="chart"') == 2
    assert "Tokens per round against T are not drawn" in text


@pytest.mark.slow
def test_a_models_name_is_no_markup(tmp_path: Path) -> None:
    target = {"id": "<script>alert(1)</script> [bold]", "fingerprint": "b", "revision": None, "dtype": "float32",
              "vocab_size": 60, "quantization": None, "attention": None, "kind": "model"}  # fmt: skip
    folder = write(tmp_path / "run", manifest(8, target=target))
    assert traces("plot", folder) == 0
    assert "<script>alert" not in (folder / "pictures" / "index.html").read_text(encoding="utf-8")


# Bad input and help


@pytest.mark.parametrize("command", ["verify", "describe", "plot"])
def test_unknown_folder_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces(command, tmp_path / "nowhere") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("fsd-traces: error: ")
    assert "nowhere" in line


def test_a_file_in_the_way_is_one_line(along_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("a file")
    assert traces("plot", along_target, "--out", tmp_path / "taken") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "taken" in line
    assert "cannot be written" in line


@pytest.mark.parametrize("arguments", [["tidy", "run"], ["describe"], ["plot", "run", "--light"]])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert traces(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fsd-traces: error: ")


def test_help_tells_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert traces("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for expected in ("verify", "describe", "plot", "Examples: fsd traces", "0 done", "2 bad input or damaged traces"):
        assert expected in text
    assert traces("verify", "--help") == 0
    assert "damaged" in capsys.readouterr().out
