"""The rules of CRT's appendix A.6 that concern screening: each test fails when its rule is broken.

Rules 1 and 6 concern the definition and the training; they are tested with the certificate and the trainer.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.screening import (
    MASK,
    LabelledSpan,
    RawDocument,
    Screening,
    SplitSettings,
    differing_points,
)
from tacit.corpus.screening.screening import RawPoint
from tacit.corpus.screening.sentences import split_points
from tests.corpus.screening.detectors import Expressions, documents, settings, words

SECRETS = ("Alice", "Berta", "Clara", "Doris", "Elsa", "Frida", "Greta")


def screened(docs: list[RawDocument], chosen: object) -> list[tuple[str, bool]]:
    return [(point.text, point.private) for point in Screening(chosen).screen(docs)]  # type: ignore[arg-type]


def test_rule_2_masking_a_secret_moves_no_boundary() -> None:
    """Split first: a secret that holds a sentence's end must not shift the points after it."""
    secret = "Ann. Bob Street"
    text = f"I live at {secret}. It rains. We go. They come. You stay."
    chosen = settings(words("Ann", "Bob"))
    points = [text[start:end] for start, end in split_points(text, chosen.split)]
    assert points[0] == "I live at Ann."  # the splitter is wrong here, and the points after it must not care
    # Only the two points that the secret lies in may differ; split after masking, all of them would.
    assert differing_points(documents(text), [secret], chosen) <= 2
    assert len(split_points(text.replace(secret, MASK), chosen.split)) != len(points)


def test_rule_2_redaction_comes_after_dedup() -> None:
    """Redacted first, the second of two sentences that differ in a secret would become a bare mask."""
    texts = [point for point, _ in screened(documents("Hi Alice.", "Hi Berta."), settings(words(*SECRETS)))]
    assert texts == [f"Hi {MASK}.", f"Hi {MASK}."]


@given(
    st.lists(
        st.sampled_from(
            ["I met Dr. Jones.", "Call me!", "is it 5.30 p.m. now", "J. R. Doe came.", "Ok?", "Yes"]
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 3),
    st.booleans(),
)
def test_rule_3_points_are_whole_sentences(sentences: list[str], size: int, lines: bool) -> None:
    text = "\n".join(sentences)
    bounds = split_points(text, SplitSettings(sentences=size, lines=lines))
    # Every boundary is one between the sentences that the text was made of.
    ends = {0}
    for sentence in sentences:
        ends.add(max(ends) + len(sentence) + 1)
    assert all(bound.start in ends for bound in bounds)
    if lines:
        assert len(bounds) == -(-len(sentences) // size)


def test_rule_3_a_long_sentence_stays_whole() -> None:
    text = "word " * 50_000 + "end. Next."
    assert [end - start for start, end in split_points(text, SplitSettings())] == [len(text) - 6, 5]


def test_rule_4_duplicates_and_secrets_get_the_same_mask() -> None:
    texts = [text for text, _ in screened(documents("Alice", "Hello.", "Hello."), settings(words("Alice")))]
    assert texts == [MASK, "Hello.", MASK]


def test_rule_4_positions_stay_because_nothing_is_deleted() -> None:
    docs = documents("Hello. Hello. Hello. Bye.")
    points = list(Screening(settings(words("x"))).screen(docs))
    assert [(point.start, point.text) for point in points] == [
        (0, "Hello."),
        (7, MASK),
        (14, MASK),
        (21, "Bye."),
    ]


def test_rule_5_whatever_has_a_mask_is_private() -> None:
    chosen = settings(words("Alice"), conservative=0.5)
    points = list(Screening(chosen).screen(documents("Hi Alice. Fine. Fine.", "Nothing here.")))
    assert [point.private for point in points] == [True, False, True, False]
    assert all(point.private for point in points if MASK in point.text)


def test_rule_5_a_mask_that_nobody_labelled_is_private_too() -> None:
    """As in a neighbouring corpus, where the secret was masked before any policy looked."""
    chosen = settings(words("x"), conservative=0.5)
    text = "Hi Alice."
    point = RawPoint("u", 0, 0, 0, 0, text, masked=(LabelledSpan(3, 8, "NAME"),))
    (found,) = Screening(chosen).screen_points([point])
    assert (found.text, found.private) == (f"Hi {MASK}.", True)


def test_rule_5_what_only_the_conservative_policy_labels_is_private_and_unmasked() -> None:
    doubtful = settings(words(), conservative=0.2)
    doubtful.policy.scorers[0].scores["maybe"] = 0.3  # type: ignore[attr-defined]
    assert screened(documents("It is maybe. It is not."), doubtful) == [
        ("It is maybe.", True),
        ("It is not.", False),
    ]


def test_without_a_conservative_policy_everything_is_private() -> None:
    assert screened(documents("Plain text."), settings(words("x"), conservative=None)) == [
        ("Plain text.", True)
    ]


def test_a_caught_secret_in_a_sentence_that_occurs_once_changes_nothing() -> None:
    chosen = settings(words(*SECRETS))
    docs = documents("I am Alice. It rains.", "Who are you?")
    assert differing_points(docs, ["Alice"], chosen) == 0
    neighbour = documents("I am Berta. It rains.", "Who are you?")
    assert screened(docs, chosen) == screened(neighbour, chosen)


def test_a_secret_that_is_masked_as_a_part_of_something_is_not_caught() -> None:
    """Masked is not caught: alone and masked beforehand, it leaves in sight what it was found with."""
    chosen = settings(Expressions((r"(Alice Lane \d+)",)))
    docs = documents("I live at Alice Lane 5. It rains.")
    points = list(Screening(chosen).screen(docs))
    assert points[0].text == f"I live at {MASK}."
    assert points[0].settled
    assert differing_points(docs, ["Alice"], chosen) == 1
    assert differing_points(docs, ["Alice Lane 5"], chosen) == 0


def test_two_caught_secrets_of_one_template_differ_in_one_point() -> None:
    docs = documents("I am Alice.", "I am Berta.")
    assert differing_points(docs, ["Alice", "Berta"], settings(words(*SECRETS))) == 1
    # Each alone changes nothing: only as a group do they merge.
    assert differing_points(docs, ["Alice"], settings(words(*SECRETS))) == 0


def test_one_missed_of_seven_in_one_template_differs_in_seven_points() -> None:
    docs = documents(*(f"I am {secret}." for secret in SECRETS))
    missed_first = settings(words(*SECRETS[1:]), conservative=None)
    assert differing_points(docs, SECRETS, missed_first) == 7
    # Where the missed one is not the first of them, the first is the same in both corpora.
    missed_last = settings(words(*SECRETS[:-1]), conservative=None)
    assert differing_points(docs, SECRETS, missed_last) == 6


def test_every_occurrence_of_every_secret_counts() -> None:
    docs = documents("I am Alice. You are Berta. Bye Alice.", "Hello Berta.")
    everything = settings(words("x"), conservative=None)
    assert differing_points(docs, ["Alice", "Berta"], everything) == 4
    assert differing_points(docs, ["Alice"], everything) == 2


def test_without_dedup_only_the_missed_secrets_differ() -> None:
    docs = documents(*(f"I am {secret}." for secret in SECRETS))
    chosen = settings(words(*SECRETS[1:]), conservative=None, dedup="off")
    assert differing_points(docs, SECRETS, chosen) == 1


def test_points_keep_their_order() -> None:
    points = list(Screening(settings(words("x"))).screen(documents(*("Aha. Boo. Cool." for _ in range(700)))))
    assert all((a.document, a.point) < (b.document, b.point) for a, b in pairwise(points))
    assert len(points) == 2100
