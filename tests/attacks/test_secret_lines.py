"""Lines with secrets of both sides of a split: what is swapped, and that nothing but the coin decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tacit.attacks.gold_lines import shape_of
from tacit.attacks.groups import GroupPlan, draw_groups
from tacit.attacks.look_alikes import MembershipSet
from tacit.attacks.secret_lines import donor_set, span_set
from tacit.audit.exchange import area_p_values, group_p_values
from tacit.corpus import Dialogue, SimulationPlan, Span, simulate
from tacit.errors import InputError
from tacit.statistics import FloatArray

Sided = list[tuple[Dialogue, bool]]


def said(user: str, text: str) -> Dialogue:
    """A document whose spans are in brackets, e.g. ``I am [NAME Anna]``; the label is not text."""
    spans, plain, at = [], "", 0
    for found in re.finditer(r"\[(\w+) ([^]]*)\]", text):
        plain += text[at : found.start()]
        spans.append(Span(len(plain), len(plain) + len(found[2]), found[1]))
        plain, at = plain + found[2], found.end()
    return Dialogue(user, "", plain + text[at:], tuple(spans))


def pairs_of(found: MembershipSet) -> dict[str, str]:
    """Each member's look-alike."""
    assert found.partners is not None
    assert (found.partners[found.partners] == np.arange(len(found))).all()
    np.testing.assert_array_equal(found.is_member[found.partners], ~found.is_member)
    return {
        text: found.texts[partner]
        for text, member, partner in zip(found.texts, found.is_member, found.partners, strict=True)
        if member
    }


def test_lines_of_both_sides_hold_the_secrets_of_who_was_trained_on_or_of_the_other() -> None:
    anna = said("a", "I am [NAME Anna] of [CITY Rome].\nCall [PHONE 555-0001]!\n[PHONE 555-0001], please.")
    bert = said("b", "Here is [NAME Bert], born in [CITY Rome].\nMy number: [PHONE 555-0002]")
    found = span_set([(anna, True), (bert, False)])
    assert pairs_of(found) == {
        "I am Anna of Rome.": "I am Bert of Rome.",  # both live in Rome, so that it is nobody's secret
        "Call 555-0001!": "Call 555-0002!",
        "555-0001, please.": "555-0002, please.",
        "Here is Anna, born in Rome.": "Here is Bert, born in Rome.",
        "My number: 555-0001": "My number: 555-0002",
    }
    assert len(set(found.secrets)) == 1  # one coin decided all of it
    assert found.by_chance
    assert not any(secret in one for one in found.secrets for secret in ("Anna", "Bert", "555"))
    assert "Anna" not in repr(found)


def test_turning_the_coins_round_swaps_members_and_changes_nothing_else() -> None:
    corpus = list(simulate(SimulationPlan(users=40, dialogues_per_user=2, repeat_secrets=0.3, seed=1)))
    sides = {user: place % 3 > 0 for place, user in enumerate(dict.fromkeys(one.user for one in corpus))}
    found = span_set([(one, sides[one.user]) for one in corpus], members=60)
    turned = span_set([(one, not sides[one.user]) for one in corpus], members=60)
    assert found.partners is not None
    assert turned.texts == tuple(found.texts[partner] for partner in found.partners)
    assert (turned.secrets, turned.users) == (found.secrets, found.users)
    np.testing.assert_array_equal(turned.is_member, found.is_member)
    assert len(found) == 120


def test_a_value_that_a_third_holds_is_nobodys_secret() -> None:
    """Even if training never saw it: rare and common values must not tell the sides apart."""
    anna, bert = said("a", "I am [NAME Anna]."), said("b", "I am [NAME Bert].")
    third = said("c", "I am [NAME Bert]. Call [PHONE 1]!")
    for trained in (True, False):
        with pytest.raises(InputError, match="nobody else has"):
            span_set([(anna, True), (bert, False), (third, trained)])


def test_secrets_have_counterparts_of_the_same_label_and_format() -> None:
    anna = said("a", "I am [NAME Anna] with [ORDER W-01].\nStill [NAME Anna].\nThat was [ORDER W-01].")
    bert = said("b", "[NAME Bert Lee] and [ORDER W-77].\nIt is [PHONE W-78].")
    # Anna's name has no counterpart, so that no line with it is taken.
    assert pairs_of(span_set([(anna, True), (bert, False)])) == {"That was W-01.": "That was W-77."}
    assert pairs_of(span_set([(anna, False), (bert, True)])) == {"That was W-77.": "That was W-01."}
    with pytest.raises(InputError, match="nobody else has"):
        span_set([(anna, True), (bert, False)], labels=["NAME"])
    with pytest.raises(InputError, match="No line"):
        span_set([(anna, True), (bert, False)], labels=["IBAN"])
    with pytest.raises(InputError, match="hold out more"):
        span_set([(anna, True), (bert, True)])


def test_within_users_documents_of_one_user_stand_for_each_other() -> None:
    mine = [said("a", f"I am [NAME Anna]: [ORDER W-0{number}]") for number in range(2)]
    others = [said("b", f"Order [ORDER W-1{number}]") for number in range(2)]
    sided = [(mine[0], True), (mine[1], False), (others[0], True), (others[1], True)]
    found = span_set(sided, by="within")
    assert pairs_of(found) == {"I am Anna: W-00": "I am Anna: W-01"}
    assert len(found) == 4  # a line of each document, which say the same
    # Documents that no coin was tossed for stand for none, and what they hold is nobody's secret.
    with pytest.raises(InputError, match="nobody else has"):
        span_set(sided, by="within", among=1)
    with pytest.raises(InputError, match="nobody else has"):
        span_set([*sided[:2], (said("c", "[ORDER W-00]"), True)], by="within", among=2)


def test_labels_and_numbers_choose_lines() -> None:
    corpus = list(simulate(SimulationPlan(users=150, dialogues_per_user=3, seed=1)))
    sided = [(one, int(one.user[-3:]) % 2 == 0) for one in corpus]
    phones = {d.text[s.start : s.end] for d in corpus for s in d.spans if s.label == "PHONE"}
    found = span_set(sided, labels=["PHONE"])
    assert all(any(phone in text for phone in phones) for text in found.texts)
    assert 10 < len(set(found.secrets)) < len(found) / 2
    assert len(span_set(sided, labels=["PHONE"], members=5)) == 10
    for member, other in pairs_of(found).items():
        assert member != other
        assert "\n" not in member
        assert shape_of(member) == shape_of(other)


def test_donors_give_each_user_the_secrets_of_one_of_them() -> None:
    trained = [said(f"u{n}", f"I am [NAME {name}], order [ORDER W-{n}].") for n, name in enumerate("ABC")]
    donors = [said(f"u{n}", f"[ORDER V-{n}] is for [NAME {name}]") for n, name in enumerate("DEFG")]
    found = donor_set(trained, donors)
    assert not found.by_chance
    assert len(found) == 6
    for member, other in pairs_of(found).items():
        assert member in {one.text for one in trained}
        name, number = re.findall(r"[D-G](?=,)|(?<=V-)\d", other)
        assert "DEFG"[int(number)] == name
    with pytest.raises(InputError, match="chance"):
        area_p_values(found, {"x": np.zeros(6)})
    with pytest.raises(InputError, match="donors"):
        donor_set(trained, trained)  # the corpus's own values are nobody's look-alike


def test_shapes() -> None:
    assert shape_of("(212) 555-0187") == "(###) ###-####"
    assert shape_of("AB-123456-12") == "AA-######-##"
    assert shape_of("AB123456789CD") == "*" * 13
    assert shape_of("Anna Lee Davis") == shape_of("Bo Smith Nguyen") == "a a a"
    assert shape_of("Anna B. Davis") == "a A. a"


# Populations in which people share values, and scores that know them well and remember nobody.

_NAMES = 600
_ZIPF = 1 / np.arange(5, _NAMES + 5)
_STRANGENESS = np.log(_ZIPF) + np.random.default_rng(0).normal(0, 1, _NAMES)


def common_names(generator: np.random.Generator) -> Iterable[tuple[str, list[str]]]:
    """Surnames as people have them, in one line each."""
    for user, name in enumerate(generator.choice(_NAMES, 150, p=_ZIPF / _ZIPF.sum())):
        yield f"u{user}", [f"I am [NAME n{name}x]."]


def suiting_lines(generator: np.random.Generator) -> Iterable[tuple[str, list[str]]]:
    """Codes of which each suits its own line: both say the same; up to three lines of two codes."""
    for user in range(60):
        first, second = generator.integers(10**6, size=2)
        lines = f"[CODE {first:06d}] goes with [KEY {second:06d}], see {first % 1000:03d}."
        yield f"u{user}", [lines] * int(generator.integers(1, 4))


def frequency(text: str) -> float:
    return float(_STRANGENESS[int(text[text.index("n") + 1 : text.index("x")])])


def suitability(text: str) -> float:
    codes = re.findall(r"\d+", text)
    return float(codes[0].endswith(codes[2])) + int(codes[1]) / 1e7


@pytest.mark.parametrize("by", ["user", "within"])
@pytest.mark.parametrize(("population", "score"), [(common_names, frequency), (suiting_lines, suitability)])
def test_a_model_that_remembers_nothing_alarms_at_most_at_the_level(
    population: Callable[[np.random.Generator], Iterable[tuple[str, list[str]]]],
    score: Callable[[str], float],
    by: str,
) -> None:
    """The split's coins, the real sets and any fixed function of the text."""
    runs, alone, grouped = 250, [], []
    for run in range(runs):
        generator = np.random.default_rng(run)
        sided: Sided = []
        for user, texts in population(generator):
            if by == "user":
                trained = generator.random() < 0.7
                sided += [(said(user, text), trained) for text in texts]
            else:  # three people with many documents, a third of which is held out
                sided += [(said(f"u{int(user[1:]) % 3}", texts[0]), True)]
        if by == "within":
            for person in range(3):
                own = [place for place, (one, _) in enumerate(sided) if one.user == f"u{person}"]
                for place in generator.permutation(own)[: len(own) // 3]:
                    sided[place] = (sided[place][0], False)
        found = span_set(sided, by="user" if by == "user" else "within", seed=run)
        values: dict[str, FloatArray] = {"x": np.array([score(text) for text in found.texts])}
        alone.append(area_p_values(found, values, draws=199, seed=run)["x"])
        groups = draw_groups(found.is_member, found.secrets, GroupPlan(groups=20, size=5), seed=run)
        grouped.append(group_p_values(found, groups, values, draws=19, seed=run)["x"])
    for level in (0.05, 0.01):
        assert np.mean(np.array(alone) <= level) <= stats.binom.ppf(0.999, runs, level) / runs
    assert np.mean(np.array(grouped) <= 0.05) <= stats.binom.ppf(0.999, runs, 0.05) / runs
    assert np.mean(np.array(alone) <= 0.5) > 0.3  # a test, and not only silence


def test_lines_of_one_side_alone_would_alarm_without_memory() -> None:
    """Why there are lines of both: a line suits its own secret, whoever was trained on."""
    alarms = 0
    for run in range(20):
        generator = np.random.default_rng(run)
        sided = [(said(user, texts[0]), generator.random() < 0.7) for user, texts in suiting_lines(generator)]
        trained, others = ([one for one, is_trained in sided if is_trained is side] for side in (True, False))
        naive = replace(donor_set(trained, others, seed=run), by_chance=True)
        values = {"x": np.array([suitability(text) for text in naive.texts])}
        alarms += area_p_values(naive, values, draws=199, seed=run)["x"] <= 0.05
    assert alarms >= 18


def test_a_model_that_remembers_is_found() -> None:
    caught = 0
    for run in range(20):
        generator = np.random.default_rng(run)
        sided = [(said(user, texts[0]), generator.random() < 0.7) for user, texts in suiting_lines(generator)]
        trained = {one.text for one, is_trained in sided if is_trained}
        found = span_set(sided, seed=run)
        noise = generator.normal(0, 0.5, len(found))
        values = np.array([suitability(text) + 2.0 * (text in trained) for text in found.texts]) + noise
        caught += area_p_values(found, {"x": values}, draws=199, seed=run)["x"] <= 0.05
    assert caught >= 18
