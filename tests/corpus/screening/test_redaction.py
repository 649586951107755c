"""Masks map back to the raw text; redaction reaches a fixed point that a neighbour shares, or says not."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.screening import MASK, LabelledSpan, Policy, RawDocument, ScoredToken, Screening
from tacit.corpus.screening.masks import escaped, raw_spans, rendered, united
from tacit.corpus.screening.redaction import Redactor
from tacit.corpus.screening.sentences import SplitSettings, split_points
from tacit.errors import RecipeError
from tests.corpus.screening.detectors import Expressions, WordScores, documents, settings, words

TEXT = st.text(st.sampled_from("abAB <MASK>.!?,\n\t(é1"), max_size=60)


@st.composite
def text_and_spans(draw: st.DrawFn) -> tuple[str, list[LabelledSpan]]:
    text = escaped(draw(TEXT.filter(bool)))
    places = st.integers(0, len(text) - 1)
    starts = draw(st.lists(st.tuples(places, st.integers(1, 8), st.sampled_from("XY")), max_size=5))
    return text, [LabelledSpan(start, min(start + size, len(text)), label) for start, size, label in starts]


@given(text_and_spans())
def test_every_character_outside_masks_is_kept_and_every_position_maps_back(
    case: tuple[str, list[LabelledSpan]],
) -> None:
    text, spans = case
    form = rendered(text, spans)
    hidden = {place for span in spans for place in range(span.start, span.end)}
    between = "".join(text[place] for place in range(len(text)) if place not in hidden)
    # Outside the masks is the raw text outside the spans, but for what stood between two that became one.
    kept = form.text.replace(MASK, "")
    assert re.sub(r"[\s,]", "", kept) == re.sub(r"[\s,]", "", between)
    assert form.text.count(MASK) == len(form.masks)
    # Put back what the masks hide, and the raw text is there again.
    pieces = iter(form.masks)
    assert re.sub(re.escape(MASK), lambda _: text[slice(*next(pieces)[:2])], form.text) == text
    for place in range(len(form.text)):
        for start, end in raw_spans(form, place, place + 1):
            assert text[start:end] == form.text[place]
            assert not any(mask.start <= start < mask.end for mask in form.masks)


@given(text_and_spans(), st.integers(0, 40), st.integers(0, 40))
def test_a_stretch_maps_back_as_its_characters_do(
    case: tuple[str, list[LabelledSpan]], one: int, other: int
) -> None:
    text, spans = case
    form = rendered(text, spans)
    start, end = sorted(min(place, len(form.text)) for place in (one, other))
    singly = {
        place for at in range(start, end) for span in raw_spans(form, at, at + 1) for place in range(*span)
    }
    whole = raw_spans(form, start, end)
    assert {place for span in whole for place in range(*span)} == singly
    assert all(first[1] <= second[0] for first, second in pairwise(whole))


@given(text_and_spans())
def test_masks_are_apart(case: tuple[str, list[LabelledSpan]]) -> None:
    text, spans = case
    masks = united(text, spans)
    for first, second in pairwise(masks):
        assert text[first.end : second.start].strip() not in ("", ",")
    assert united(text, masks) == masks


@given(text_and_spans())
def test_pieces_of_other_kinds_are_apart_unless_they_overlap(case: tuple[str, list[LabelledSpan]]) -> None:
    text, spans = case
    pieces = united(text, spans, same_label=True)
    covered = {i for span in spans for i in range(span.start, span.end)}
    assert covered <= {i for piece in pieces for i in range(piece.start, piece.end)}
    for first, second in pairwise(pieces):
        assert first.end <= second.start
        assert first.label != second.label or text[first.end : second.start].strip(" \t") != ""
    assert united(text, pieces, same_label=True) == pieces


def test_what_two_detectors_found_is_one_piece() -> None:
    text = "call (936) 633-4453, Ada Lund"
    tokens = [LabelledSpan(5, 6, "CODE"), LabelledSpan(6, 9, "CODE"), LabelledSpan(11, 14, "CODE")]
    names = [LabelledSpan(21, 24, "TITLE"), LabelledSpan(25, 29, "PERSON")]
    phone = LabelledSpan(5, 19, "PHONE")
    assert united(text, [*tokens, phone, *names], same_label=True) == (phone, *names)


@given(TEXT)
def test_raw_text_that_spells_a_mask_is_changed_in_place(text: str) -> None:
    assert MASK not in escaped(text)
    assert len(escaped(text)) == len(text)
    assert escaped(text.replace("<", "")) == text.replace("<", "")


def test_a_spelt_mask_is_not_a_mask() -> None:
    screening = Screening(settings(words("Alice")))
    points = list(screening.screen(documents("A <MASK> here. Hi Alice.")))
    assert [(point.text, point.private) for point in points] == [
        ("A (MASK) here.", False),
        (f"Hi {MASK}.", True),
    ]
    assert screening.counts.escaped == 1


def test_with_placeholders_every_spelt_placeholder_is_changed() -> None:
    chosen = settings(words("Alice"), placeholders=True)
    points = list(Screening(chosen).screen(documents("<NAME> and <b> and Alice.")))
    assert points[0].text == "(NAME) and <b> and <WORD>."


@given(st.lists(st.sampled_from(["Alice", "Bob", "likes", "tea,", "<MASK>", "and"]), max_size=8))
def test_redacting_what_is_redacted_changes_nothing(parts: list[str]) -> None:
    redactor = Redactor(settings(words("Alice", "Bob")).policy)
    text = escaped(" ".join(parts))
    once = redactor.redact([text])[0]
    again = redactor.redact([text], masked=[once.spans])[0]
    assert redactor.form(again).text == redactor.form(once).text


@given(st.lists(TEXT.filter(lambda text: bool(text.strip())), min_size=1, max_size=6), st.integers(1, 3))
def test_points_lie_where_they_say(texts: list[str], sentences: int) -> None:
    docs = documents(*texts)
    points = list(Screening(settings(words("aa", "b"), sentences=sentences)).screen(docs))
    for number, document in enumerate(docs):
        own = [point for point in points if point.document == number]
        outside = document.text
        for point in reversed(own):
            assert (
                document.text[point.start : point.end].strip() == document.text[point.start : point.end] != ""
            )
            outside = outside[: point.start] + outside[point.end :]
            if not point.duplicate:
                masks = iter(point.masked)
                whole = re.sub(
                    re.escape(MASK),
                    lambda _, m=masks, t=document.text: escaped(t)[slice(*next(m)[:2])],  # type: ignore[misc]
                    point.text,
                )
                assert whole == escaped(document.text)[point.start : point.end]
        assert outside.strip() == ""
        assert [point.point for point in own] == list(range(len(own)))


# A detector that sees "Bob" only beside "Alice": once Alice is masked, Bob looks like any word.
DEPENDENT = Expressions((r"\b(Alice)\b", r"Alice and (Bob)\b"))
# One that sees a word because of the mask beside it: masking goes on and on.
CHAIN = Expressions((r"\b(start)\b", rf"{MASK}=(\w)"))


def test_what_is_found_because_of_a_mask_is_masked_too() -> None:
    redactor = Redactor(Policy((CHAIN,), 0.5, 0.5, max_rounds=8))
    result = redactor.redact(["go start=a=b=c end"])[0]
    assert redactor.form(result).text == f"go {MASK}={MASK}={MASK}={MASK} end"
    assert result.rounds == 5


def test_what_needs_too_many_rounds_is_not_settled() -> None:
    result = Redactor(Policy((CHAIN,), 0.5, 0.5, max_rounds=2)).redact(["go start=a=b=c end"])[0]
    assert not result.settled


def test_a_sentence_that_a_neighbour_redacts_differently_is_not_settled() -> None:
    """In D both words are masked; in D', with Alice masked beforehand, Bob stays: eps = 0 would be false."""
    chosen = settings(DEPENDENT)
    screening = Screening(chosen)
    points = list(screening.screen(documents("Alice and Bob. Alice alone. Nobody.")))
    assert [(point.text, point.settled, point.private) for point in points] == [
        (f"{MASK} and {MASK}.", False, True),
        (f"{MASK} alone.", True, True),
        ("Nobody.", True, False),
    ]
    assert screening.counts.unsettled == 1


@pytest.mark.parametrize(("names", "settled"), [(64, True), (65, False)])
def test_a_point_with_too_many_secrets_to_compare_is_not_settled(names: int, settled: bool) -> None:
    """The work grows with the square of their number: a long line of them must not block a screening."""
    text = " likes ".join(["Alice"] * names) + "."
    screening = Screening(settings(WordScores({"Alice": 1.0}, contextual=True)))
    (point,) = screening.screen(documents(text))
    assert (point.settled, point.private) == (settled, True)
    assert "Alice" not in point.text
    assert screening.counts.unsettled == (not settled)


@given(st.permutations(["Alice", "Bob", "and", "Alice", "start=a=b"]), st.integers(0, 5))
def test_settled_means_the_same_with_any_one_span_masked_beforehand(parts: list[str], size: int) -> None:
    policy = Policy((DEPENDENT, CHAIN), 0.5, 0.5)
    text = " ".join(parts[:size]) + "."
    redactor = Redactor(policy)
    result = redactor.redact([text])[0]
    same = all(
        redactor.form(redactor.redact([text], masked=[[span]])[0]).text == redactor.form(result).text
        for span in result.spans
    )
    assert result.settled == same


def test_tags_are_asked_for_once_per_text() -> None:
    scorer = WordScores({"Alice": 1.0}, contextual=True)
    list(Screening(settings(scorer, dedup="off")).screen(documents("Hi Alice.", "Hi Alice.", "Hi Alice.")))
    assert sorted(scorer.read) == ["Hi <MASK>.", "Hi Alice."]


@pytest.mark.parametrize(
    ("given_", "words_"),
    [
        ({"redact": 0.0}, "redact=0.0 in"),
        ({"redact": 1.5}, "redact=1.5 in"),
        ({"redact": 0.5, "conservative": 0.6}, "conservative=0.6 in"),
        ({"redact": 0.5, "max_rounds": 0}, "max_rounds=0"),
    ],
)
def test_thresholds_that_mean_nothing_are_refused(given_: dict[str, float], words_: str) -> None:
    with pytest.raises(RecipeError, match=words_):
        Policy((words("x"),), **given_)  # type: ignore[arg-type]


def test_a_policy_that_looks_for_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="no scorer"):
        Policy((), 0.5)


def test_a_scorer_that_points_outside_the_text_is_a_bug() -> None:
    class Outside(Expressions):
        def score(self, texts: object) -> list[list[ScoredToken]]:
            return [[ScoredToken(0, 99, "X", 1.0)]]

    with pytest.raises(ValueError, match="text of 3 characters"):
        Redactor(Policy((Outside(()),), 0.5)).redact(["abc"])


def test_lines_bound_points_or_only_blank_lines_do() -> None:
    text = "a long line\nthat goes on\n\nNext. One"
    assert [text[slice(*b)] for b in split_points(text, SplitSettings())] == [
        "a long line", "that goes on", "Next.", "One",
    ]  # fmt: skip
    wrapped = split_points(text, SplitSettings(lines=False))
    assert [text[slice(*b)] for b in wrapped] == ["a long line\nthat goes on", "Next.", "One"]


def test_documents_of_a_corpus_without_text_have_no_points() -> None:
    assert list(Screening(settings(words("x"))).screen([RawDocument("u", " \n ")])) == []
