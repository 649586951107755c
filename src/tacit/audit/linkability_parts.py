"""The part of ``audit.json`` about linkability: what a fresh probe tells of authors."""

from __future__ import annotations

from tacit.audit.file_parts import Count, Measured, Part, Share


class Chance(Part):
    """What naming one author for all texts gives, and naming any of them."""

    most_frequent: Share
    one_of_all: Share


class Probed(Part):
    """One model's states."""

    accuracy: Measured
    among_first: Measured | None = None
    p_value: Share
    probe: str


class Guessed(Part):
    """The discriminator of adversarial training, in its last epoch."""

    accuracy: Share
    most_frequent_author: Share


class Linkability(Part):
    """The Run's states beside others'."""

    what: str
    label: str | None = None
    unseen: bool
    authors: Count
    learnt: Count
    scored: Count
    chance: Chance
    run: Probed
    public: Probed
    control: Probed | None = None
    above_public: Measured
    above_control: Measured | None = None
    discriminator: Guessed | None = None
