"""The section of privacy regularisation: what steers training, and promises nothing."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tacit.recipes.fields import Count, Flag, Name, Real, Section

# Relative distances give gradients of the order of one over the distance: triplets need far less weight than
# a discriminator, and at 1 a small model hardly learns. Pairs within a batch cost next to nothing; that they
# are as private as the paper's second batch was tried and not shown (docs/regularisation.md).
DEFAULTS_OF: Final[dict[str, dict[str, float | str]]] = {
    "adversarial": {"lambda": 1.0},
    "triplet": {"lambda": 0.1, "pairs": "second"},
}


class RegularisationSection(Section):
    """`method: adversarial` and `method: triplet`: the weight of the privacy loss, and over whom.

    lambda              weight of the privacy loss beside the mean loss per token; 0 is training without it;
                        default: 1 for adversarial, 0.1 for triplet
    schedule            constant; linear: from 0 up to lambda over the first `ramp` of the steps; sigmoid:
                        lambda * (2 / (1 + exp(-10 t)) - 1), t from 0 to 1 over the run (Ganin et al. 2016)
    label               column with what shall not be told from a text; default: the user
    batches             user: texts of as few authors as possible in a batch; mixed: of any
    hidden              adversarial: width of the discriminator
    discriminator_rate  adversarial: its learning rate, of AdamW
    pairs               triplet: second (its default): each text of a batch with one of an auxiliary batch,
                        which runs through the model too (as printed); batch: all pairs within a batch
    margin              triplet: squared distance up to which an author's texts are pushed apart, as a
                        multiple of the mean over all pairs of the batch
    paper_eq4           triplet: Eq. 4 as printed, whose signs the paper's text contradicts; it has no margin
                        and no lower bound
    """

    weight: Annotated[Real, Field(ge=0, le=1e6)] = Field(default=1.0, alias="lambda")
    schedule: Literal["constant", "linear", "sigmoid"] = "constant"
    ramp: Annotated[Real, Field(gt=0, le=1)] = 0.5
    label: Name | None = None
    batches: Literal["user", "mixed"] = "user"
    hidden: Annotated[Count, Field(le=10**6)] = 1000
    discriminator_rate: Annotated[Real, Field(gt=0, le=1)] = 1e-3
    pairs: Literal["batch", "second"] = "batch"
    margin: Annotated[Real, Field(gt=0, le=1e6)] = 1.0
    paper_eq4: Flag = False

    @property
    def smallest_batch(self) -> int:
        """How many texts a batch must have for triplets: two of an author and another's, or two pairs."""
        return 3 if self.pairs == "batch" else 2

    def foreign_key(self, method: str) -> str | None:
        """The first key that is set and that the method would ignore."""
        ignored = {
            "adversarial": ("pairs", "margin", "paper_eq4"),
            "triplet": ("hidden", "discriminator_rate"),
        }
        # By value, not by what was written: the recipe in a Run has every key.
        names = ignored[method] + (("ramp",) if self.schedule != "linear" else ())
        for name in names + (("margin",) if self.paper_eq4 else ()):
            if getattr(self, name) != type(self).model_fields[name].default:
                return name
        return None
