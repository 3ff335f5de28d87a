"""Every sort of specific is measured on labelled lines: what is found of what is there, and what is found besides."""

from __future__ import annotations

import pytest
from hypothesis import given

from context_compiler.compiler.patterns import TABLE, Sort
from context_compiler.compiler.specifics import SCANNED, TextSet, comparable_text, specifics
from tests.compiler.labelled import LABELLED
from tests.support.texts import texts

FLOORS = {
    Sort.URL: (0.9, 0.9),
    Sort.PATH: (0.9, 0.9),
    Sort.DATE: (0.9, 0.9),
    Sort.VERSION: (0.9, 0.9),
    Sort.ID: (0.9, 0.9),
    Sort.NUMBER: (0.9, 0.9),
    Sort.NAME: (0.9, 0.9),
    Sort.COMMAND: (0.9, 0.9),
    Sort.RULE: (0.85, 0.9),
}
"""Precision and recall that must be reached on these lines."""


def labels(sort: Sort) -> list[tuple[str, set[str]]]:
    pairs: list[tuple[str, set[str]]] = []
    for line in LABELLED[sort].splitlines():
        said, _, expected = line.rpartition(" =>")
        pairs.append((said, {part.strip() for part in expected.split(";;") if part.strip()}))
    return pairs


def measured(sort: Sort) -> tuple[float, float, list[object]]:
    """Precision and recall on the labelled lines, and the lines that are wrong."""
    right = extra = missed = 0
    wrong: list[object] = []
    for said, expected in labels(sort):
        got = {specific.verbatim for specific in specifics(said) if specific.sort is sort}
        right, extra, missed = right + len(got & expected), extra + len(got - expected), missed + len(expected - got)
        if got != expected:
            wrong.append((said, expected, got))
    return right / max(1, right + extra), right / max(1, right + missed), wrong


@pytest.mark.parametrize("sort", list(Sort))
def test_specifics_are_found_with_high_precision_and_recall(sort: Sort) -> None:
    assert len(labels(sort)) >= 20 and sum(not expected for _, expected in labels(sort)) >= 8
    precision, recall, wrong = measured(sort)
    print(f"{sort}: precision {precision:.3f}, recall {recall:.3f}")
    assert precision >= FLOORS[sort][0], wrong
    assert recall >= FLOORS[sort][1], wrong


@pytest.mark.parametrize("sort", list(Sort))
def test_other_text_does_not_change_the_specifics_found(sort: Sort) -> None:
    signs = "\n\n" + " ".join(sorted({sign for row in TABLE for sign in row[2]}))
    for said, _ in labels(sort):
        beside = [one for one in specifics(said + signs) if one.offset < len(said)]
        assert beside == list(specifics(said))


@given(text=texts())
def test_every_specific_is_found_at_its_offset(text: str) -> None:
    for one in specifics(text):
        assert text[one.offset : one.offset + len(one.verbatim)] == one.verbatim
        assert one.text == comparable_text(one.verbatim)


def test_both_ends_of_a_very_long_text_are_read() -> None:
    text = "see src/first.py " + "x " * (SCANNED + 10) + " see src/last.py"
    found = specifics(text)
    assert [one.verbatim for one in found] == ["src/first.py", "src/last.py"]
    assert text[found[1].offset :].startswith("src/last.py")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("It costs $1,299.00.", "we agreed on $1299.00 then"),
        ("wait 12 ms", "a pause of 12ms"),
        ("Use SRC/Main.py", "it is in src/main.py now"),
        ('the "Dark Theme" file', "called Dark  Theme by them"),
    ],
)
def test_a_specific_in_another_form_counts_as_kept(said: str, told: str) -> None:
    assert all(TextSet(told).holds(one) for one in specifics(said))


@pytest.mark.parametrize(
    ("said", "told"), [("order 12345", "order 123456"), ("src/a.py", "src/a.pyc"), ("v1.2", "v1.23")]
)
def test_a_part_of_a_longer_word_is_not_the_specific(said: str, told: str) -> None:
    assert not any(TextSet(told).holds(one) for one in specifics(said))


def test_a_date_at_the_end_of_a_sentence_has_no_full_stop() -> None:
    dates = [specific.verbatim for specific in specifics("The tiles come on 12 June. The lamps on 3 Sept. 2026.")]
    assert dates == ["12 June", "3 Sept. 2026"]
