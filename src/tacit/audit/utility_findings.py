"""What a model is worth on held-out text, and for whom.

Who pays is told against a Run without protection where there is one. Without, the public model is what is
compared with: then a change says whom training helped, not what protection costs, and it is labelled so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Literal

from tacit.audit.disparity import measure_disparity
from tacit.corpus import UserCorpus
from tacit.evaluation.perplexity import Losses
from tacit.training.preparation import SplitCorpus

Baseline = Literal["run", "public"]
PUBLIC_NAME = "the public model"


def utility_section(
    public: Losses, own: Losses, unmitigated: Losses | None, *, confidence: float = 0.95
) -> dict[str, Any]:
    """Perplexities side by side, and bits per byte, which compare across tokenizers."""
    # Unknown words are predicted without being spelt: then bits per byte are too low to compare.
    bits = None if own.unknown_tokens else own.bits_per_byte(confidence=confidence)
    return {
        "public": public.perplexity(confidence=confidence).to_json(),
        "run": own.perplexity(confidence=confidence).to_json(),
        "unmitigated": None
        if unmitigated is None
        else unmitigated.perplexity(confidence=confidence).to_json(),
        "bits_per_byte": None if bits is None else bits.to_json(),
        "text": f"held-out text of {len(own.users)} users, blocks of {own.block_size} tokens",
    }


def disparity_section(
    own: Losses,
    other: Losses,
    texts: SplitCorpus,
    *,
    split_within: bool,
    against: str,
    baseline: Baseline,
    confidence: float,
    planted: Collection[str],
) -> dict[str, Any] | None:
    """The change for each user of the held-out text; None for one user alone.

    Samples are the user's documents in training. A split by user leaves those of the held-out users none:
    then they are all that the user wrote, and a caveat says that it was not trained on. Nobody wrote
    ``planted`` texts (without spaces around them): who carries canaries would else be one of those who wrote
    most.
    """
    counts = _documents_of_users(texts.train if split_within else texts.whole, planted)
    wrote = [place for place, user in enumerate(own.users) if counts[user]]
    if len(wrote) < 2:
        return None
    samples = [counts[own.users[place]] for place in wrote]
    mine, theirs = own.perplexity_by_user()[wrote], other.perplexity_by_user()[wrote]
    found = measure_disparity(mine, theirs, samples, confidence=confidence)
    caveats = list(found.caveats)
    if without := len(own.users) - len(wrote):
        caveats.append(f"Users left out: {without}, of whose text training had nothing but planted canaries.")
    if not split_within:
        caveats.append(
            "Users were held out as a whole: samples are what they wrote, and none of it was trained on. "
            "Hold text out within users (held_out.by=within) to see who pays among those who were."
        )
    return {
        "against": against,
        "baseline": baseline,
        "users": found.users,
        "compared": found.compared,
        "mean": found.mean.to_json(),
        "top": found.most.to_json(),
        "bottom": found.fewest.to_json(),
        "gap": found.gap.to_json(),
        "slope": None if found.slope is None else found.slope.to_json(),
        "points": [[count, change] for count, change in zip(samples, (mine - theirs).tolist(), strict=True)],
        "caveats": caveats,
    }


def _documents_of_users(corpus: UserCorpus, planted: Collection[str]) -> Counter[str]:
    """How many documents each user wrote."""
    if not planted:  # then no text has to be read
        return Counter(dict(zip(corpus.users, corpus.document_counts().tolist(), strict=True)))
    return Counter(one.user for one in corpus.documents() if one.text.strip() not in planted)
