"""Tokens to pieces of text: nothing is shown that a later token could take back, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.models.tokenizer import PublicTokenizer
from tacit.serving.writing import Writing
from tests.tiny import byte_level_tokenizer

TOKENIZER = PublicTokenizer.wrap(byte_level_tokenizer(), start_token=0, vocabulary="public")
END = 0  # the tiny tokenizer's only control token


def written(
    text: str, *, stop: tuple[str, ...] = (), most: int = 1000, end: bool = True
) -> tuple[str, Writing]:
    writing = Writing(TOKENIZER, most=most, stop=stop)
    shown = ""
    for token in [*TOKENIZER.encode([text])[0], *([END] if end else [])]:
        shown += writing.add(token).text
        if writing.finish:
            break
    return shown, writing


@given(st.text(min_size=1, max_size=60))
def test_pieces_add_up_to_the_text(text: str) -> None:
    shown, writing = written(text)
    assert shown == TOKENIZER.decode(TOKENIZER.encode([text])[0])
    assert writing.finish == "stop"


@given(
    st.text(alphabet="ab", min_size=1, max_size=40),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_a_stop_string_and_what_follows_never_appear(text: str, stop: list[str]) -> None:
    shown, writing = written(text, stop=tuple(stop))
    # It ends with the token that completes a stop string; of several that one completes, at the first.
    tokens = TOKENIZER.encode([text])[0]
    expected = text
    for count in range(1, len(tokens) + 1):
        so_far = TOKENIZER.decode(tokens[:count])
        found = [at for at in map(so_far.find, stop) if at >= 0]
        if found:
            expected = so_far[: min(found)]
            break
    assert shown == expected
    assert writing.finish == "stop"


def test_half_a_character_waits_for_the_other_half() -> None:
    pieces = []
    writing = Writing(TOKENIZER, most=100)
    tokens = TOKENIZER.encode(["é"])[0]
    assert len(tokens) == 2, "two bytes, two tokens"
    pieces = [writing.add(token).text for token in tokens]
    assert pieces == ["", "é"]


def test_half_a_character_at_the_end_is_shown_as_it_is() -> None:
    writing = Writing(TOKENIZER, most=1)
    assert writing.add(TOKENIZER.encode(["é"])[0][0]).text == "\ufffd"


@pytest.mark.parametrize("most", [1, 3])
def test_the_longest_answer_ends_by_its_length(most: int) -> None:
    _, writing = written("The baker carries a red boat", most=most)
    assert (writing.finish, len(writing.tokens)) == ("length", most)


def test_a_stop_token_of_the_request_ends_it_unseen() -> None:
    first, second, *_ = TOKENIZER.encode(["The baker carries"])[0]
    writing = Writing(TOKENIZER, most=9, stop_tokens=frozenset({second}))
    assert [writing.add(token).finish for token in (first, second)] == [None, "stop"]
    assert TOKENIZER.decode([first]) == "The"


def test_the_end_token_counts_and_is_not_shown() -> None:
    shown, writing = written("The baker")
    assert shown == "The baker"
    assert writing.tokens[-1] == END
