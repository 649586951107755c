"""Validated patterns: what they must find, what they must leave, and the sums behind their checks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.screening import PatternScorer
from tacit.corpus.screening.patterns import KNOWN
from tacit.corpus.screening.validation import luhn, mod97
from tacit.errors import RecipeError


def found(text: str, *entities: str) -> list[tuple[str, str]]:
    tokens = PatternScorer(entities or KNOWN[:-1]).score([text])[0]
    assert all(token.score == 1.0 for token in tokens)
    return [(token.label, text[token.start : token.end]) for token in sorted(tokens)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail jane.doe+x@mail.example.co.uk now", ("EMAIL", "jane.doe+x@mail.example.co.uk")),
        ("see https://example.org/a?b=1, please", ("URL", "https://example.org/a?b=1")),
        ("see www.example.org.", ("URL", "www.example.org")),
        ("it is on shop.example.com today", ("URL", "shop.example.com")),
        ("host 192.168.0.254 is down", ("IP", "192.168.0.254")),
        ("host 2001:db8::8a2e:370:7334 is down", ("IP", "2001:db8::8a2e:370:7334")),
        ("born 7/30/1964 here", ("DATE", "7/30/1964")),
        ("at 2000-04-16 11:34:35 sharp", ("DATE", "2000-04-16 11:34:35")),
        ("on 3rd of March 2019 we", ("DATE", "3rd of March 2019")),
        ("on October 12 we", ("DATE", "October 12")),
        ("on Dec. 5, 1999 we", ("DATE", "Dec. 5, 1999")),
        # The example number of the US Social Security Administration's publications.
        ("SSN 219-09-9999 is", ("SSN", "219-09-9999")),
        # Example IBANs of the ISO 13616 registry: United Kingdom, Germany.
        ("to GB29 NWBK 6016 1331 9268 19 please", ("IBAN", "GB29 NWBK 6016 1331 9268 19")),
        ("to DE89370400440532013000 please", ("IBAN", "DE89370400440532013000")),
        # Test numbers that card networks publish.
        ("card 4111 1111 1111 1111 ok", ("CARD", "4111 1111 1111 1111")),
        ("card 378282246310005 ok", ("CARD", "378282246310005")),
        ("call (415) 555-0132 x12 now", ("PHONE", "(415) 555-0132 x12")),
        ("call +44 20 7946 0958 now", ("PHONE", "+44 20 7946 0958")),
        ("call 01223355013.", ("PHONE", "01223355013")),
        ("call 01.84.17.61.18 now", ("PHONE", "01.84.17.61.18")),
        ("at cb21ab today", ("POSTCODE", "cb21ab")),
        ("at SW1A 1AA today", ("POSTCODE", "SW1A 1AA")),
        ("the code is c.b 2 , 1 a.b ok", ("POSTCODE", "c.b 2 , 1 a.b")),
        ("in North Zachary, WI 42884 now", ("POSTCODE", "WI 42884")),
        ("Reference number is : JXVKZ7KV .", ("REFERENCE", "JXVKZ7KV")),
        ("your reference number is FZTWSZHH .", ("REFERENCE", "FZTWSZHH")),
        ("order number is 4512, sir", ("REFERENCE", "4512")),
        ("tracking W06D-ALZB-FNSM here", ("REFERENCE", "W06D-ALZB-FNSM")),
        ("train TR0378 leaves", ("REFERENCE", "TR0378")),
        ("parcel 9094 4951 1261 1297 left", ("NUMBER", "9094 4951 1261 1297")),
        ("the number 123456 fits", ("NUMBER", "123456")),
    ],
)
def test_every_form_is_found_whole(text: str, expected: tuple[str, str]) -> None:
    assert expected in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "I need 3 rooms for 2 nights at 16:30, 23.60 pounds",
        "the 1920s and the 2nd of them, 100km away at 10am",
        "COVID-19 and Blink of 1999",
        "version 1.2.3 of windows10 has 50 000 users",
        "WELCOME TO THE HOTEL",
        "it costs 1,234.56 in total; 5 - 7 people",
        "We arrive at 11 am. by 10 AM",
        "1 2 3 4 5 6 7 8 9",
    ],
)
def test_plain_numbers_and_words_are_left(text: str) -> None:
    assert found(text) == []


def test_a_failed_check_leaves_the_place_to_the_next_pattern() -> None:
    assert ("CARD", "4111 1111 1111 1112") not in found("card 4111 1111 1111 1112 ok")
    assert found("card 4111 1111 1111 1112 ok") == [("NUMBER", "4111 1111 1111 1112")]
    assert found("is 999-99-9999 it") == [("PHONE", "999-99-9999")]
    assert ("DATE", "13/13/2019") not in found("on 13/13/2019 we")
    assert found("host 999.168.0.254 is", "IP") == []
    assert found("to GB29 NWBK 6016 1331 9268 18 please", "IBAN") == []


def test_a_year_has_to_be_asked_for() -> None:
    assert found("founded in 1977.") == []
    assert found("founded in 1977.", "YEAR") == [("YEAR", "1977")]


def test_only_what_was_asked_for_is_found() -> None:
    text = "mail a@b.org or call 01223355013"
    assert found(text, "EMAIL") == [("EMAIL", "a@b.org")]
    assert found(text, "PHONE") == [("PHONE", "01223355013")]


def test_unknown_entities_are_refused() -> None:
    with pytest.raises(RecipeError, match="FAX"):
        PatternScorer(["EMAIL", "FAX"])
    with pytest.raises(RecipeError, match="among"):
        PatternScorer([])


@given(st.integers(0, 10**15), st.integers(1, 9))
def test_luhn_finds_every_wrong_digit(number: int, change: int) -> None:
    """ISO/IEC 7812-1 Annex B: the sum detects any single wrong digit."""
    digits = str(number)
    check = next(str(digit) for digit in range(10) if luhn(digits + str(digit)))
    whole = digits + check
    for place in range(len(whole)):
        wrong = str((int(whole[place]) + change) % 10)
        assert not luhn(whole[:place] + wrong + whole[place + 1 :])


@given(st.text("ABCDEFGHIJ0123456789", min_size=11, max_size=30))
def test_mod_97_accepts_exactly_one_pair_of_check_digits(account: str) -> None:
    """ISO 13616: of the pairs 02 to 98 exactly one is right."""
    valid = [pair for pair in range(2, 99) if mod97(f"GB{pair:02d}{account}")]
    assert len(valid) == 1


ADDRESS = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]+@[\w-]+(?:\.[\w-]+)+")


@given(st.text(st.sampled_from("ab@@..-_!é "), max_size=40))
def test_addresses_are_those_of_the_expression_that_reads_from_every_place(text: str) -> None:
    assert found(text, "EMAIL") == [("EMAIL", match.group()) for match in ADDRESS.finditer(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a." * 40_000 + "zz", set()),
        ("a-" * 40_000 + ".xy", set()),
        ("A" * 80_000 + " mail a@b.com", {"EMAIL", "URL"}),
        ("a+" * 40_000 + "http://x.org", {"URL"}),
    ],
    ids=["dots", "dashes", "letters", "signs"],
)
def test_a_long_run_is_read_once(text: str, expected: set[str]) -> None:
    """Read anew from each of its places, each of these takes longer than a test may."""
    (tokens,) = PatternScorer().score([text])
    assert {token.label for token in tokens} == expected


@pytest.mark.parametrize("before", ["--", "see...", ".", "a@", "(", "-.-"])
def test_domains_are_found_whatever_stands_before_them(before: str) -> None:
    assert ("URL", "shop.example.com") in found(f"{before}shop.example.com", "URL")


@given(st.text(st.sampled_from("0123456789 -/.:()+@AbcJan#is,"), max_size=60))
def test_nothing_breaks_the_patterns_and_everything_lies_in_the_text(text: str) -> None:
    tokens = PatternScorer(KNOWN).score([text])[0]
    assert all(0 <= token.start < token.end <= len(text) for token in tokens)
    assert PatternScorer(KNOWN).score([text, text]) == [tokens, tokens]
