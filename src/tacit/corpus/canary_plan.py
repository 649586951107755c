"""What to plant: a plan that is checked as a whole before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tacit.corpus.limits import require_seed, require_share, require_whole
from tacit.corpus.rows import is_utf8
from tacit.errors import InputError

SecretKind = Literal["digits", "words"]
PrefixKind = Literal["distinct", "shared"]
OwnerKind = Literal["existing", "new"]

SECRET, TAG = "{secret}", "{tag}"

_GREATEST_LENGTH = 100
_MOST_DOCUMENTS = 1_000_000
# Among new users one in ten must stay in training, or finding names for them takes too long.
_LARGEST_HELD_OUT_SHARE = 0.9


@dataclass(frozen=True)
class CanaryPlan:
    """What to plant. Every chosen user gets one canary per rung of ``ladder``, repeated that many times.

    ``distinct`` prefixes give each canary a public tag of its own (at ``{tag}``, else as "tag: " in front of
    the template), so that canaries do not compete for one continuation; ``shared`` is the papers' protocol.

    ``held_out_share`` and ``held_out_seed`` are those of the split by user that training will make: canaries
    go to users on its training side only. With a share of 0 any user may carry them.
    """

    template: str = "My ID is: {secret}"
    secret: SecretKind = "digits"  # noqa: S105 (the kind of secret, not one)
    length: int = 6
    prefix: PrefixKind = "distinct"
    users: int = 10
    owner: OwnerKind = "existing"
    ladder: tuple[int, ...] = (1,)
    include: float = 0.5
    held_out_share: float = 0.0
    held_out_seed: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("secret", SecretKind), ("prefix", PrefixKind), ("owner", OwnerKind)):
            if getattr(self, name) not in get_args(kind):
                choices = " or ".join(get_args(kind))
                raise InputError(f"Expected {name}={getattr(self, name)!r} to be {choices}.")
        self._check_template()
        require_whole("users", self.users, most=_MOST_DOCUMENTS, example=10)
        require_whole("length", self.length, most=_GREATEST_LENGTH, example=6)
        if not isinstance(self.ladder, tuple) or not self.ladder:
            raise InputError("Expected ladder to be a tuple of repetitions, at least one, e.g. (1, 2, 5).")
        for rung in self.ladder:
            require_whole("every rung of ladder", rung, most=_MOST_DOCUMENTS, example=5)
        if (most := self.users * sum(self.ladder)) > _MOST_DOCUMENTS:
            raise InputError(
                f"Expected users={self.users} and ladder to plant at most {_MOST_DOCUMENTS:,} documents, not "
                f"{most:,}; choose fewer users or repetitions."
            )
        require_share("include", self.include, "the coin's chance", example=0.5)
        held_out = "the share of users that training will hold out"
        require_share(
            "held_out_share", self.held_out_share, held_out, most=_LARGEST_HELD_OUT_SHARE, example=0.2
        )
        if isinstance(self.held_out_seed, bool) or not isinstance(self.held_out_seed, int):
            raise InputError(f"Expected held_out_seed={self.held_out_seed!r} to be a whole number, e.g. 0.")
        if self.seed is not None:
            require_seed("seed", self.seed)

    def how_to_keep_in_training(self, documents: int) -> str:
        """One sentence for who trains on the planted corpus, which had so many documents before."""
        within = f"with held_out.by=within and held_out.among={documents}"
        if not self.held_out_share:
            return (
                f"Users who carry canaries may be held out: train {within} or with held_out=null, or plant "
                "with the share and the seed of the recipe's held_out."
            )
        return (
            f"The canaries stay in training with held_out.by=user, held_out.seed={self.held_out_seed} and a "
            f"held_out.share of at most {self.held_out_share}, {within}, or with held_out=null; other splits "
            "may hold them out."
        )

    def _check_template(self) -> None:
        if not isinstance(self.template, str):
            raise InputError(f"Expected template to be text, e.g. 'My ID is: {SECRET}'.")
        if not is_utf8(self.template):
            raise InputError(
                "Expected template to be text that UTF-8 can hold; it has half of a surrogate pair."
            )
        if self.template.count(SECRET) != 1:
            raise InputError(
                f"Expected template to contain {SECRET} exactly once, found {self.template.count(SECRET)}; "
                f"e.g. 'My ID is: {SECRET}'."
            )
        if self.template.count(TAG) > 1 or TAG in self.template.partition(SECRET)[2]:
            raise InputError(f"Expected template to contain {TAG} at most once, and before {SECRET}.")
        if self.prefix == "shared" and TAG in self.template:
            raise InputError(f"A shared prefix has no tags: take {TAG} out, or use prefix='distinct'.")
