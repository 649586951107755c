"""Masking what a policy labels, until the policy finds nothing more in what is left.

A contextual detector may label other words once a secret is masked. Then the masked sentence would tell
whether the secret had been there, and "a caught secret costs nothing" would be false. Two rules make it
true, or say where it is not:

* **Fixed point.** The scorers run again on the masked sentence until they find nothing new.
* **Same from either side.** For each span that was labelled, the sentence in which that span alone is masked
  beforehand (the neighbouring corpus) is redacted too, and must come out the same.

A sentence that needs more than the policy's rounds, that comes out differently, or that has more than 64
spans (each needs a neighbour of its own) is not *settled*: it is private, it counts as missed, and it is
reported. For a settled one, redaction gives the same text with any one labelled span and with a mask in its
place. Groups of secrets are another matter: ``differing_points`` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tacit.corpus.screening.masks import LabelledSpan, Rendered, raw_spans, rendered, united
from tacit.corpus.screening.policy import Policy

_MOST_COMPARED = 64  # spans of one text: the work grows with their square
_NEIGHBOURS_AT_ONCE = 256  # texts in memory


@dataclass
class Redaction:
    """What became of one text.

    ``spans`` are the labelled pieces of the raw text, in order; ``conservative`` says whether pi_c labelled
    anything; ``fixed`` that the last run of the scorers found nothing new, ``settled`` that neighbours agree
    as well; ``rounds`` counts the scorers' runs.
    """

    text: str
    spans: tuple[LabelledSpan, ...]
    conservative: bool = False
    fixed: bool = True
    settled: bool = True
    rounds: int = 0
    before: tuple[LabelledSpan, ...] = field(default=(), repr=False)  # what was masked from the beginning


class Redactor:
    """Redacts texts by a policy, many at a time."""

    def __init__(self, policy: Policy, *, verify: bool = True) -> None:
        self.policy = policy
        self._verify = verify and policy.contextual

    def redact(
        self,
        texts: Sequence[str],
        labelled: Sequence[Sequence[LabelledSpan]] | None = None,
        masked: Sequence[Sequence[LabelledSpan]] | None = None,
    ) -> list[Redaction]:
        """Redact texts that spell no mask (``masks.escaped``).

        ``labelled`` are spans of each text that are secrets without asking a scorer; ``masked`` those that
        were masked before anybody looked, as in a neighbouring corpus.
        """
        results = []
        for number, text in enumerate(texts):
            before = tuple(masked[number]) if masked else ()
            known = tuple(labelled[number]) if labelled else ()
            results.append(Redaction(text, self._pieces(text, (*before, *known)), before=before))
        self._settle(results)
        if self._verify:
            self._compare_with_neighbours(results, labelled)
        return results

    def form(self, redaction: Redaction) -> Rendered:
        """The written form of a result."""
        return rendered(redaction.text, redaction.spans, placeholders=self.policy.placeholders)

    def _pieces(self, text: str, spans: Sequence[LabelledSpan]) -> tuple[LabelledSpan, ...]:
        return united(text, spans, same_label=True)

    def _settle(self, results: Sequence[Redaction]) -> None:
        """Run the scorers until nothing is new, or the rounds are used up."""
        active = list(results)
        for number in range(self.policy.max_rounds + 1):
            if not active:
                return
            forms = [self.form(result) for result in active]
            tokens = self.policy.tokens([form.text for form in forms])
            unsettled = []
            for result, form, found in zip(active, forms, tokens, strict=True):
                result.rounds = number + 1
                new = []
                for token in found:
                    shown = [
                        LabelledSpan(start, end, token.label)
                        for start, end in raw_spans(form, token.start, token.end)
                        if not result.text[start:end].isspace()
                    ]
                    if shown and number == 0:
                        result.conservative = True
                    if token.score >= self.policy.redact:
                        new += shown
                if new:
                    result.spans = self._pieces(result.text, (*result.spans, *new))
                    unsettled.append(result)
            if not self.policy.contextual:
                return
            active = unsettled
        for result in active:
            result.fixed = result.settled = False

    def _compare_with_neighbours(
        self, results: Sequence[Redaction], labelled: Sequence[Sequence[LabelledSpan]] | None
    ) -> None:
        """Unsettle what comes out differently when one of its spans is masked beforehand."""
        pairs = []
        for number, result in enumerate(results):
            pieces = [span for span in result.spans if span not in result.before]
            # With a single piece, the last round was the neighbour's first and found nothing: they agree.
            if not result.settled or len(pieces) < 2:
                continue
            if len(pieces) > _MOST_COMPARED:
                result.settled = False
                continue
            known = tuple(labelled[number]) if labelled else ()
            pairs += [(result, piece, known) for piece in pieces]
        for first in range(0, len(pairs), _NEIGHBOURS_AT_ONCE):
            self._compare(pairs[first : first + _NEIGHBOURS_AT_ONCE])

    def _compare(self, pairs: Sequence[tuple[Redaction, LabelledSpan, Sequence[LabelledSpan]]]) -> None:
        neighbours = []
        for result, piece, known in pairs:
            before = (*result.before, piece)
            spans = self._pieces(result.text, (*before, *known))
            neighbours.append(Redaction(result.text, spans, before=before))
        self._settle(neighbours)
        for (result, _, _), neighbour in zip(pairs, neighbours, strict=True):
            if not neighbour.fixed or self.form(neighbour).text != self.form(result).text:
                result.settled = False
