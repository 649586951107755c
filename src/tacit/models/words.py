"""Whole words of a public vocabulary: the list that word secrets are drawn from."""

from __future__ import annotations

from tacit.models.tokenizer import PublicTokenizer

_SHORTEST = 3


def whole_words(tokenizer: PublicTokenizer) -> list[str]:
    """Lower-case words that are one token of their own behind a space, in alphabetical order.

    One token each makes canaries of equal word count equally long for the model. A token that stands for
    several words, such as that of unknown ones, tells none of them.
    """
    found = {tokenizer.decode([number]).strip() for number in range(len(tokenizer))}
    candidates = sorted(
        word
        for word in found
        if len(word) >= _SHORTEST and word.isascii() and word.isalpha() and word.islower()
    )
    encoded = tokenizer.encode([f" {word}" for word in candidates])
    single = [(word, ids) for word, ids in zip(candidates, encoded, strict=True) if len(ids) == 1]
    return [word for word, ids in single if tokenizer.decode(ids).strip() == word]
