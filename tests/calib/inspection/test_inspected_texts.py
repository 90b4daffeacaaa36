"""Inspected texts as words, on a terminal and as a page: whole, escaped, and marked without colours too."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from fsd_calib.inspection.html import texts_page, token_spans
from fsd_calib.inspection.inspected import InspectedText, first_difference, inspect_text
from fsd_calib.inspection.terminal import print_texts
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.observers.token_sources import TokenSource, name_of
from fsd_decoding.policies.shapes import Schedule
from fsd_decoding.tree_shape import TreeShape
from support.models.scripted_models import TEXT, generating
from support.models.stop_policies import Unsure

ESCAPE = re.compile("\x1b\\[[0-9;]*m")
HOSTILE = '<script>alert("&")</script>\x1b[31m'


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    """Generates a text of many alphabets; its draft errs at every third token. T = 1 accepts all, as js is below it."""
    return generating("byte-level")


@pytest.fixture(scope="module")
def strict(decoder: SpeculativeDecoder) -> InspectedText:
    return inspect_text(decoder.with_config(rule="fsd-coupled", threshold=0.0), [5], 90)


@pytest.fixture(scope="module")
def loose(decoder: SpeculativeDecoder) -> InspectedText:
    return inspect_text(decoder.with_config(rule="fsd-coupled", threshold=1.0), [5], 40)


def printed(texts: Sequence[InspectedText], width: int = 80, colours: bool = False, table: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colours, color_system="standard" if colours else None
    )
    with console.capture() as captured:
        print_texts(texts, console, table)
    return captured.get()


def flat(text: str) -> str:
    """Without what wrapping and columns change."""
    return "".join(text.split())


def test_a_text_is_told_by_its_tokens(strict: InspectedText, loose: InspectedText) -> None:
    assert strict.text == TEXT
    assert strict.title == "T = 0"
    assert strict.setting == "fsd-coupled, D is js, L = 4"
    assert TokenSource.FUZZY not in strict.shares
    assert TokenSource.FUZZY in loose.shares
    assert sum(loose.shares.values()) == pytest.approx(1)


def test_settings_without_a_constant_threshold_are_named(decoder: SpeculativeDecoder) -> None:
    moved = decoder.with_config(rule="fsd-coupled", threshold_policy=Schedule(0.1, 0.2, 5))
    titles = [inspect_text(each, [5], 4).title for each in (moved, decoder, decoder.with_config(rule="target"))]
    assert titles == ["T moved by Schedule", "Rule coupled", "Rule target"]
    ended = inspect_text(decoder.with_config(stop_policy=Unsure()), [5], 4)
    assert ended.setting == "coupled, D is js, L = 4, drafts ended early by Unsure"
    sampled = inspect_text(decoder.with_config(temperature=0.7, top_k=3, seed=5), [5], 4)
    assert sampled.setting == "coupled, D is js, L = 4, temperature 0.7, seed 5, top-k 3"


def test_texts_part_at_their_first_unequal_token(strict: InspectedText, loose: InspectedText) -> None:
    at = first_difference(strict.tokens, loose.tokens)
    assert at is not None
    assert [t.token for t in strict.tokens[:at]] == [t.token for t in loose.tokens[:at]]
    assert strict.tokens[at].token != loose.tokens[at].token
    assert first_difference(strict.tokens, strict.tokens) is None
    assert first_difference(strict.tokens, strict.tokens[:7]) == 7


def test_colours_leave_the_text_as_it_is(strict: InspectedText) -> None:
    shown = printed([strict], colours=True)
    assert "\x1b[4;35m" in shown  # a fallback is underlined too
    assert flat(TEXT) in flat(ESCAPE.sub("", shown)).replace("·", "").replace("⏎", "")


def test_without_colours_marks_tell_sources_and_scores(loose: InspectedText) -> None:
    shown = printed([loose])
    assert not ESCAPE.search(shown)
    for token in loose.tokens:
        if token.source is TokenSource.FUZZY and token.text.strip():
            assert flat(f"[{token.text.strip()} {token.score:.2g}]") in flat(shown)


def test_no_color_is_heeded(strict: InspectedText, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = printed([strict], colours=True)
    assert "\x1b[4;35m" not in shown
    assert "<" in ESCAPE.sub("", shown)


@pytest.mark.parametrize("width", [80, 130])
def test_two_texts_stand_below_or_beside_each_other(strict: InspectedText, loose: InspectedText, width: int) -> None:
    lines = printed([strict, loose], width).splitlines()
    titles = [line.split() for line in lines if line.startswith("T = ")]
    assert titles == ([["T", "=", "0"], ["T", "=", "1"]] if width == 80 else [["T", "=", "0", "T", "=", "1"]])
    assert sum(line.count("▶") for line in lines) == 3  # in both texts, and in the legend
    assert max(map(len, lines)) <= width
    at = first_difference(strict.tokens, loose.tokens)
    assert at is not None
    assert f"The texts part at token {at + 1}." in lines
    assert "Both texts are the same." in printed([strict, strict], width)


def test_a_table_has_a_row_for_each_token(loose: InspectedText) -> None:
    rows = [line.split() for line in printed([loose], table=True).splitlines()]
    cells = {row[0]: row for row in rows if len(row) == 7 and row[0].isdecimal()}
    assert list(cells) == [str(i + 1) for i in range(len(loose.tokens))]
    for token in loose.tokens:
        row = cells[str(token.position + 1)]
        assert row[1:4] == [str(token.round + 1), name_of(token.name), token.source]
        assert (row[4] == "–") == (token.score is None)
        assert (row[6] == "–") == (token.alternative is None)


class Spans(HTMLParser):
    """The text and the data of spans, and the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.says: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.says += [value for name, value in attrs if name == "data-says" and value]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_spans_hold_the_text_and_tell_their_tokens(strict: InspectedText, loose: InspectedText) -> None:
    at = first_difference(strict.tokens, loose.tokens)
    for text in (strict, loose):
        spans = Spans(token_spans(text.tokens, at))
        assert "".join(spans.texts) == text.text
        assert len(spans.says) == len(text.tokens)
        for says, token in zip(spans.says, text.tokens, strict=True):
            assert str(token.source) in says
            assert ("D = " in says) == (token.score is not None)
            assert ("instead of" in says) == (token.source is TokenSource.FUZZY)


def test_a_page_needs_nothing_else_and_runs_nothing(strict: InspectedText, loose: InspectedText) -> None:
    page = texts_page([strict, loose], HOSTILE, f"{HOSTILE} with draft")
    spans = Spans(page)
    assert not {"script", "link", "img", "iframe"} & spans.tags
    assert not re.search(r"https?:|url\(|@import", page)
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert "".join(spans.texts).count('<script>alert("&")</script>') == 2
    assert "prefers-color-scheme: dark" in page
    assert all(f"T = {t}" in page for t in "01")


# --- trees -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grown(decoder: SpeculativeDecoder) -> InspectedText:
    return inspect_text(decoder.with_config(rule="fsd-coupled", threshold=0.0, tree=TreeShape(2, 5)), [5], 20)


def test_every_round_has_its_tree(grown: InspectedText, strict: InspectedText) -> None:
    assert grown.setting == "fsd-coupled, D is js, L = 4, trees of 5 nodes, top 2"
    assert len(grown.trees) == grown.rounds
    assert strict.trees == ()


@pytest.mark.parametrize("colours", [False, True])
def test_trees_stand_below_the_table(grown: InspectedText, colours: bool) -> None:
    shown = printed([grown], colours=colours, table=True)
    plain = ESCAPE.sub("", shown)
    for number, tree in enumerate(grown.trees, 1):
        begin = plain.index(f"\nround {number}\n")
        lines = plain[begin:].splitlines()[2 : 2 + len(tree)]
        for line in lines:
            assert re.match(r"[│ ]*[├└]── ", line)
        marked = [line for line in lines if line.endswith(")") and "── (" in line]
        assert colours or len(marked) == sum(node.accepted for node in tree)
        assert sorted(re.sub(r"^[│ ]*[├└]── \(?|\)$", "", line) for line in lines) == sorted(
            name_of(node.name) for node in tree
        )
    assert "Drafted trees" not in printed([grown])


def test_a_page_has_all_trees_escaped(grown: InspectedText) -> None:
    hostile = tuple(tuple(replace(node, name=HOSTILE) for node in tree) for tree in grown.trees)
    page = texts_page([replace(grown, trees=hostile)], "prompt", "models")
    assert "<script>alert" not in page
    assert page.count("<li>") == sum(map(len, grown.trees))
    assert page.count("<li><b>") == sum(node.accepted for tree in grown.trees for node in tree)
