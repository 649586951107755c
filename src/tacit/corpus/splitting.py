"""Setting text aside for evaluation, so that whether a text is set aside depends on its user alone.

Both ways of splitting look at a hash of the user's own id, keyed by the seed. Holding out an exact share of
the users would need a ranking of them all, and then one person's presence would decide whether another
person's text is trained on, which no accounting of privacy loss allows for.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tacit.corpus.user_corpus import UserCorpus
from tacit.errors import CorpusError, RecipeError

_HASH_BITS = 64


@dataclass(frozen=True)
class HeldOutSplit:
    """The two sides of a split; together they are the corpus, and they share no document."""

    train: UserCorpus
    held_out: UserCorpus


def split_held_out(
    corpus: UserCorpus,
    share: float = 0.2,
    by: Literal["user", "within"] = "user",
    *,
    seed: int,
    among: int | None = None,
) -> HeldOutSplit:
    """Hold out about ``share`` of the users, or (``within``) of each user's documents.

    By user, a user is held out if their hash falls below the share, so that adding a user moves nobody; the
    share holds in expectation. Within users, each user's documents are ranked by hash and
    ``round(share * n)`` of them held out, at least one and at most n - 1; a user with one document stays in
    training. With ``among``, only the first so many documents of the corpus are split within users, and all
    behind them stay in training: planted canaries stand there.
    """
    held_out = held_out_documents(corpus, share, by, seed=seed, among=among)
    split = HeldOutSplit(corpus.select(~held_out), corpus.select(held_out))
    if not len(split.train) or not len(split.held_out):
        side = "training" if not len(split.train) else "evaluation"
        remedy = (
            "change held_out.share or held_out.seed"
            if by == "user"
            else "users need two documents each, or split by user"
        )
        raise CorpusError(f"The split of {len(corpus.users)} users leaves nothing for {side}; {remedy}.")
    return split


def held_out_documents(
    corpus: UserCorpus,
    share: float,
    by: Literal["user", "within"],
    *,
    seed: int,
    among: int | None = None,
) -> npt.NDArray[np.bool_]:
    """For each document, by its index in the whole corpus, whether ``split_held_out`` holds it out."""
    if not 0 < share < 1:
        raise RecipeError(f"Expected share={share} between 0 and 1, both excluded, e.g. 0.2.")
    if by not in ("user", "within"):
        raise RecipeError(f"Expected by='{by}' to be 'user' or 'within'.")
    if corpus.unit == "undivided":
        raise CorpusError("The corpus was read without users; cut it in blocks before splitting it.")
    if by == "within":
        return _held_out_within(corpus, share, _key(seed), len(corpus) if among is None else among)
    if among is not None:
        raise RecipeError("Users are held out with all of their text, so that among is for by='within'.")
    chosen = (is_held_out(user, share, seed=seed) for user in corpus.users)
    return np.fromiter(chosen, np.bool_, len(corpus.users))[corpus.user_codes()]


def is_held_out(user: str, share: float, *, seed: int) -> bool:
    """Whether a split by user holds this user out; a larger share only adds users."""
    return _hash(_key(seed), user.encode()) < int(share * 2**_HASH_BITS)


def _held_out_within(corpus: UserCorpus, share: float, key: bytes, among: int) -> npt.NDArray[np.bool_]:
    held_out = np.zeros(len(corpus), np.bool_)
    of_user = np.split(
        np.argsort(corpus.user_codes(), kind="stable"), np.cumsum(corpus.document_counts())[:-1]
    )
    for user, whole in zip(corpus.users, of_user, strict=True):
        documents = whole[whole < among]
        count = len(documents)
        if count < 2:
            continue
        # The ordinal comes first and has a fixed width, so that no two pairs give the same bytes.
        name = user.encode()
        ranks = np.argsort(
            [_hash(key, ordinal.to_bytes(8) + name) for ordinal in range(count)], kind="stable"
        )
        held_out[documents[ranks[: min(max(round(share * count), 1), count - 1)]]] = True
    return held_out


def _key(seed: int) -> bytes:
    return f"tacit held-out split, seed {seed}".encode()


def _hash(key: bytes, content: bytes) -> int:
    return int.from_bytes(hmac.digest(key, content, "sha256")[: _HASH_BITS // 8])
