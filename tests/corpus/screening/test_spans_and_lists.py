"""Spans that a corpus brings, a miss rate that is dialled, word lists and the user's own expressions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.corpus import SimulationPlan, simulate
from tacit.corpus.screening import (
    MASK,
    DedupSettings,
    Gazetteer,
    GoldSpans,
    LabelledSpan,
    Policy,
    RawDocument,
    RegexScorer,
    Screening,
    ScreenSettings,
    group_difference,
)
from tacit.corpus.screening.gold_spans import read_spans
from tacit.corpus.screening.phrases import PhraseIndex, read_phrases
from tacit.errors import CorpusError, InputError, RecipeError


def dialogues(count: int = 20) -> list[RawDocument]:
    return [
        RawDocument(d.user, d.text, [LabelledSpan(s.start, s.end, s.label) for s in d.spans])
        for d in simulate(SimulationPlan(users=count, dialogues_per_user=2))
    ]


def by_gold(gold: GoldSpans, conservative: float | None = 0.5, dedup: str = "off") -> ScreenSettings:
    policy = Policy((), 0.5, conservative, gold=gold)
    return ScreenSettings(policy, dedup=DedupSettings(dedup))  # type: ignore[arg-type]


def test_gold_spans_are_a_perfect_policy() -> None:
    docs = dialogues()
    screening = Screening(by_gold(GoldSpans()))
    shown = "\n".join(point.text for point in screening.screen(docs))
    secrets = {doc.text[span.start : span.end] for doc in docs for span in doc.spans}
    assert len(secrets) > 100
    assert not [secret for secret in secrets if secret in shown]
    assert screening.counts.masks == sum(len(doc.spans) for doc in docs)
    assert group_difference(docs, secrets, by_gold(GoldSpans())).points == 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_dialled_miss_rate_is_met(rate: float) -> None:
    docs = dialogues(120)
    total = sum(len(doc.spans) for doc in docs)
    kept = sum(
        len(GoldSpans(miss_rate=rate, seed=3).labelled(doc.text, doc.spans, number).redact)
        for number, doc in enumerate(docs)
    )
    # Five standard deviations of a binomial around the rate, and well away from its neighbours.
    assert abs((total - kept) / total - rate) < 5 * (rate * (1 - rate) / total) ** 0.5 < 0.1


def test_every_span_has_a_coin_of_its_own() -> None:
    doc = RawDocument("u", "Ann Bob Cid", [LabelledSpan(place, place + 3, "N") for place in (0, 4, 8)])
    gold = GoldSpans(miss_rate=0.5)
    kept = [len(gold.labelled(doc.text, doc.spans, number).redact) for number in range(400)]
    # Three independent coins fall alike in a quarter of all documents; one shared coin would in all of them.
    assert 0.15 < sum(count in (0, 3) for count in kept) / 400 < 0.35


def test_the_seed_decides_which_spans_are_missed() -> None:
    doc = dialogues(1)[0]

    def kept(seed: int) -> list[LabelledSpan]:
        return GoldSpans(miss_rate=0.5, seed=seed).labelled(doc.text, doc.spans, 0).redact

    assert kept(1) == kept(1)
    assert len({tuple(kept(seed)) for seed in range(8)}) > 1


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0, 1), st.data())
def test_masking_one_secret_moves_no_other_coin(seed: int, rate: float, data: st.DataObject) -> None:
    text = "Ann met Bob, Ann met Cid."
    spans = [
        LabelledSpan(0, 3, "N"),
        LabelledSpan(8, 11, "N"),
        LabelledSpan(13, 16, "N"),
        LabelledSpan(21, 24, "N"),
    ]
    gold = GoldSpans(miss_rate=rate, conservative_miss_rate=rate / 2, seed=seed)
    before = gold.labelled(text, spans, 7)
    assert set(before.redact) <= set(before.conservative)  # pi_c misses only what pi misses
    gone = data.draw(st.sampled_from(["Ann", "Bob", "Cid"]))
    others = [span for span in spans if text[span.start : span.end] != gone]
    after = gold.labelled(text, others, 7)
    assert after.redact == [span for span in before.redact if span in others]


def test_what_pi_misses_and_pi_c_does_not_is_private_and_shown() -> None:
    doc = RawDocument("u", "I am Ann.", [LabelledSpan(5, 8, "NAME")])
    both = list(Screening(by_gold(GoldSpans(miss_rate=1.0, conservative_miss_rate=1.0))).screen([doc]))
    only_pi = list(Screening(by_gold(GoldSpans(miss_rate=1.0))).screen([doc]))
    assert (both[0].text, both[0].private) == ("I am Ann.", False)
    assert (only_pi[0].text, only_pi[0].private) == ("I am Ann.", True)


def test_a_span_across_a_boundary_is_masked_on_both_sides_and_counted() -> None:
    doc = RawDocument("u", "At Ann Road. Bob End stays.", [LabelledSpan(3, 20, "ADDRESS")])
    screening = Screening(by_gold(GoldSpans()))
    assert [point.text for point in screening.screen([doc])] == [f"At {MASK}", f"{MASK} stays."]
    assert screening.counts.cut_spans == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is no list of spans"),
        ([{"start": 0, "end": 99, "label": "X"}], "does not match the text, which has 3 characters"),
        ([{"start": 2, "end": 2, "label": "X"}], "does not match the text"),
        ([{"start": 0, "end": 2}], "is not {start, end, label}"),
        ([{"start": True, "end": 2, "label": "X"}], "is not {start, end, label}"),
        ([{"start": 0, "end": 2, "label": "X", "value": "zz"}], "its 'value' is another"),
        ("[oops", "is no list of spans"),
        ([[0, 1]], "is not {start, end, label}"),
    ],
)
def test_spans_that_do_not_match_the_text_are_one_sentence(content: object, says: str) -> None:
    with pytest.raises(CorpusError, match=says.replace("{", r"\{").replace("}", r"\}")) as caught:
        read_spans({"spans": content}, "spans", "abc", "f.jsonl, line 3")
    assert "f.jsonl, line 3" in str(caught.value)
    assert "abc" not in str(caught.value)


def test_spans_are_read_in_both_spellings() -> None:
    expected = [LabelledSpan(0, 2, "X")]
    for content in ([{"start": 0, "end": 2, "label": "X", "value": "ab"}], [[0, 2, "X"]], '[[0, 2, "X"]]'):
        assert read_spans({"s": content}, "s", "abc", "here") == expected
    with pytest.raises(CorpusError, match="no column 's'"):
        read_spans({}, "s", "abc", "here")
    with pytest.raises(CorpusError, match="use JSONL"):
        read_spans(None, "s", "abc", "here")


def test_miss_rates_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"miss_rate=1\.5"):
        GoldSpans(miss_rate=1.5)
    with pytest.raises(InputError, match=r"conservative_miss_rate=0\.5"):
        GoldSpans(miss_rate=0.1, conservative_miss_rate=0.5)


WORDS = st.sampled_from(["Ann", "Anna", "Bob Lee", "Lee", "St. Ives", "@x", "-", "ann"])


PARTS = st.sampled_from(["Ann", "Anna", "Bob", "Lee", "St.", "Ives", "@x", "-", ","])


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(PARTS, max_size=8))
def test_phrases_are_found_where_they_are_whole_words(phrases: list[str], parts: list[str]) -> None:
    text = " ".join(parts)
    expected = {
        (start, start + len(phrase))
        for phrase in phrases
        for start in range(len(text))
        if text.startswith(phrase, start)
        and not (start and text[start - 1].isalnum() and phrase[0].isalnum())
        and not (text[start + len(phrase) : start + len(phrase) + 1].isalnum() and phrase[-1].isalnum())
    }
    got = set(PhraseIndex(phrases).find(text))
    assert got <= expected
    # What is not given lies within what is: the longest phrase at a place stands for the shorter ones.
    hidden = {place for start, end in got for place in range(start, end)}
    assert all(set(range(start, end)) <= hidden for start, end in expected)


def test_gazetteers_read_files_and_may_ignore_case(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("# staff\nAnn Lee\n\nBob\n")
    text = "ANN LEE met bob and Bobby"
    loose = Gazetteer.read([path], "NAME", ignore_case=True)
    assert [text[t.start : t.end] for t in loose.score([text])[0]] == ["ANN LEE", "bob"]
    assert Gazetteer.read([path], "NAME").score([text]) == [[]]
    assert loose.fingerprint != Gazetteer.read([path], "NAME").fingerprint
    path.write_text("ann lee\nbob\n")  # the same phrases for both, and still two policies
    loose, strict = (Gazetteer.read([path], "NAME", ignore_case=loosely) for loosely in (True, False))
    assert loose.score([text]) != strict.score([text])
    assert loose.fingerprint != strict.fingerprint
    path.write_text("# nothing\n")
    with pytest.raises(InputError, match="holds no phrase"):
        Gazetteer.read([path], "NAME")
    with pytest.raises(InputError, match="cannot be read"):
        Gazetteer.read([tmp_path / "none.txt"], "NAME")


def test_every_line_of_a_file_of_secrets_is_a_secret(tmp_path: Path) -> None:
    """Whatever it begins with; a byte order mark is none, and only a line's end ends it."""
    path = tmp_path / "secrets.txt"
    path.write_bytes("\ufeffAnn Lee\r\n#4711\n\n  Bob\x85Ray\u2028x \n".encode())
    assert read_phrases(path) == ["Ann Lee", "#4711", "Bob\x85Ray\u2028x"]
    assert read_phrases(path, comments=True) == ["Ann Lee", "Bob\x85Ray\u2028x"]
    path.write_bytes("\ufeff# staff\nAnn\n".encode())
    assert Gazetteer.read([path], "NAME").index.phrases == {"Ann"}


def test_shorter_phrases_at_a_place_are_given_on_demand() -> None:
    index, text = PhraseIndex(["Ann", "Ann Lee", "Lee"]), "Ann Lee"
    assert [text[s:e] for s, e in index.find(text)] == ["Ann Lee", "Lee"]
    assert [text[s:e] for s, e in index.find(text, every=True)] == ["Ann Lee", "Ann", "Lee"]


def test_a_phrase_ends_where_its_last_word_does() -> None:
    assert list(PhraseIndex(["Bob Lee"]).find("Bob Leeds met Bob Lee")) == [(14, 21)]


def test_letters_that_grow_when_lowered_keep_their_places() -> None:
    text = "İİ Bob"
    assert [text[s:e] for s, e in PhraseIndex(["bob"], ignore_case=True).find(text)] == ["Bob"]


def test_expressions_that_differ_have_fingerprints_that_differ() -> None:
    """Also where what is written out one after the other looks the same, and scores have many digits."""
    scorers = [
        RegexScorer({"A": "x B=y"}),
        RegexScorer({"A": "x", "B": "y"}),
        RegexScorer({"A": "x"}, 0.3),
        RegexScorer({"A": "x"}, 0.30000001),
    ]
    assert len({scorer.fingerprint for scorer in scorers}) == len(scorers)


def test_expressions_find_their_secret_group() -> None:
    scorer = RegexScorer({"PIN": r"pin (?P<secret>\d+)", "TAG": r"#\w+"}, score=0.7)
    text = "pin 1234 and #tag"
    assert [(t.label, text[t.start : t.end], t.score) for t in scorer.score([text])[0]] == [
        ("PIN", "1234", 0.7),
        ("TAG", "#tag", 0.7),
    ]
    with pytest.raises(RecipeError, match="'PIN' is no regular expression"):
        RegexScorer({"PIN": "("})
