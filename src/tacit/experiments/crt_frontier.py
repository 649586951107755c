"""CRT, Figure 2: what confidentiality costs in perplexity, for an LSTM and a transformer on two corpora.

The paper draws perplexity over the Bayesian epsilon, at delta = 8e-5 and with a policy that misses a tenth of
the secrets. It draws selective DP-SGD with a perfect policy, because with any other its epsilon is infinite.
Here are the same lines, under the account that a masked secret asks for (an example replaced by another) and
under the authors' (an example added or removed), and what of CRT's price is that of deduplication, of masks
and of noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tacit.experiments.crt_ground import (
    CRT,
    DP_SGD,
    MASKED,
    NONPRIVATE,
    REDACTED,
    SELECTIVE,
    Cell,
    distinct,
    has_selective,
    stages_of,
)
from tacit.experiments.crt_models import LSTM, NAMES, TRANSFORMER
from tacit.experiments.crt_settings import TEXTS, settings_of
from tacit.experiments.crt_words import (
    CAVEATS,
    METHODS,
    conditions,
    epsilon_told,
    perplexity,
    promised,
    ratio,
)
from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.reg_levels import at_most, below_zero
from tacit.experiments.results import Chart, Finding, Level, Point, Series, Table
from tacit.experiments.results import Outcome as Word
from tacit.experiments.stages import Stage, Workshop
from tacit.report.words import estimate, number
from tacit.statistics import Estimate

_NAME: Final = "crt-frontier"
_CLOSE: Final = 1.1  # by how much a perplexity that is called close, or the same, may be larger
_ACCOUNTS: Final = {"epsilon": "replace-one", "paper_epsilon": "the paper's account"}


def cells_of(settings: Settings) -> list[Cell]:
    """Every way of training that the figure has."""
    return distinct(
        cell
        for corpus in settings["corpora"]
        for model in settings["trainings"]
        for cell in _Cells(settings, corpus, model).all()
    )


class _Cells:
    """The cells of a corpus and a model, by their part in the figure."""

    def __init__(self, settings: Settings, corpus: str, model: str) -> None:
        self._where = corpus, model
        self._model = model
        self.gamma: float = settings["frontier_gamma"]
        self.levels: Sequence[int] = range(len(settings["levels"]))
        self._attacked: int = settings["attacked_level"]

    @property
    def nonprivate(self) -> Cell:
        """Plain training on the raw text."""
        return Cell(*self._where, NONPRIVATE)

    def masked(self, gamma: float) -> Cell:
        """Plain training on text with masks."""
        return Cell(*self._where, MASKED, gamma)

    @property
    def redacted(self) -> Cell:
        """Plain training on what CRT sees."""
        return Cell(*self._where, REDACTED, self.gamma)

    def noisy(self, method: str, level: int) -> Cell:
        """DP-SGD, CRT, or selective DP-SGD with a perfect policy."""
        gamma = {DP_SGD: None, CRT: self.gamma, SELECTIVE: 0.0}[method]
        return Cell(*self._where, method, gamma, level)

    @property
    def unbounded(self) -> Cell:
        """Selective DP-SGD with a policy that misses as much as CRT's."""
        return Cell(*self._where, SELECTIVE, self.gamma, self._attacked)

    @property
    def methods(self) -> tuple[str, ...]:
        """Those with noise."""
        return (DP_SGD, SELECTIVE, CRT) if has_selective(self._model) else (DP_SGD, CRT)

    def all(self) -> Iterator[Cell]:
        """All of them."""
        yield from (self.nonprivate, self.masked(0.0), self.masked(self.gamma), self.redacted)
        yield from (self.noisy(method, level) for method in self.methods for level in self.levels)
        if has_selective(self._model):
            yield self.unbounded


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    return stages_of(workshop, settings, cells_of(settings))


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    places = {
        (corpus, model): _Cells(settings, corpus, model)
        for corpus in settings["corpora"]
        for model in settings["trainings"]
    }
    return Conclusion(
        conditions=conditions(settings, outcomes),
        tables=(
            _frontier(places, outcomes, settings),
            _accounts(places, outcomes, settings),
            _prices(places, outcomes),
        ),
        charts=tuple(_charts(places, settings, outcomes)),
        findings=tuple(_findings(places, settings, outcomes)),
        caveats=(
            *CAVEATS,
            "The paper's points are the epochs of one training; here each is a training of its own, with "
            "another noise.",
            "Of DP-SGD, an example is one sentence: nothing is promised of a secret that several sentences "
            "hold, and the epsilon is for one of them, as it is for CRT.",
        ),
    )


Places = Mapping[tuple[str, str], _Cells]


def _frontier(places: Places, outcomes: Outcomes, settings: Settings) -> Table:
    rows = []
    for (corpus, model), cells in places.items():
        for cell in distinct(cells.all()):
            found = perplexity(outcomes, cell)
            rows.append(
                (
                    corpus,
                    NAMES[model],
                    METHODS[cell.method],
                    "" if cell.gamma is None else number(cell.gamma),
                    "" if cell.level is None else number(promised(outcomes, cell, "noise") or 0.0),
                    epsilon_told(promised(outcomes, cell)),
                    epsilon_told(promised(outcomes, cell, "paper_epsilon")),
                    found,
                    "a training diverged" if found is None else None,
                )
            )
    failed = any(row[-1] for row in rows)
    columns = ("corpus", "model", "method", "gamma", "noise", "epsilon", "epsilon, paper's", "perplexity")
    return Table(
        title=f"Perplexity and the epsilon of a random secret at delta = {settings['delta']:g}",
        columns=(*columns, "") if failed else columns,
        rows=tuple(rows if failed else [row[:-1] for row in rows]),
    )


def _accounts(places: Places, outcomes: Outcomes, settings: Settings) -> Table:
    """CRT's epsilon in all the ways of telling it."""
    names = ("training", "one_point", "epsilon", "paper_training", "paper_one_point", "paper_epsilon")
    rows = []
    for (corpus, model), cells in places.items():
        for level in cells.levels:
            cell = cells.noisy(CRT, level)
            rows.append(
                (
                    corpus,
                    NAMES[model],
                    number(promised(outcomes, cell, "noise") or 0.0),
                    *(epsilon_told(promised(outcomes, cell, name)) for name in names),
                )
            )
    return Table(
        title=f"CRT's epsilon, gamma = {number(settings['frontier_gamma'])}",
        columns=(
            "corpus",
            "model",
            "noise",
            "replace-one: missed secret",
            "random secret, one point",
            "random secret, curve",
            "paper's account: missed secret",
            "one point, as printed",
            "curve",
        ),
        rows=tuple(rows),
    )


def _prices(places: Places, outcomes: Outcomes) -> Table:
    """CRT's perplexity by the non-private one's, step by step."""
    rows = []
    for (corpus, model), cells in places.items():
        masked = cells.masked(cells.gamma)
        rows.append(
            (
                corpus,
                NAMES[model],
                ratio(outcomes, masked, cells.nonprivate),
                ratio(outcomes, cells.redacted, masked),
                *(
                    ratio(outcomes, cells.noisy(CRT, level), cells.redacted)
                    for level in reversed(cells.levels)
                ),
            )
        )
    shown = [f"noise {rank}" for rank in _ranks(len(next(iter(places.values())).levels))]
    return Table(
        title="What multiplies the perplexity of non-private training on the way to CRT",
        columns=("corpus", "model", "masks", "deduplication", *shown),
        rows=tuple(rows),
    )


def _ranks(many: int) -> list[str]:
    return ["(least)", *[f"({place})" for place in range(2, many)], "(most)"][:many]


def _charts(places: Places, settings: Settings, outcomes: Outcomes) -> Iterator[Chart]:
    for corpus in settings["corpora"]:
        for account, told in _ACCOUNTS.items():
            series = []
            levels = []
            for model in settings["trainings"]:
                cells = places[corpus, model]
                series += [
                    Series(name=f"{METHODS[method]}, {NAMES[model]}", points=points)
                    for method in cells.methods
                    if (points := _points(cells, method, account, outcomes))
                ]
                levels += [
                    Level(name=f"{name}, {NAMES[model]}", value=found.value)
                    for name, cell in (
                        ("non-private", cells.nonprivate),
                        ("perfect redaction (epsilon = 0)", cells.masked(0.0)),
                    )
                    if (found := perplexity(outcomes, cell)) is not None
                ]
            if series:
                yield Chart(
                    name=f"{corpus}-{'paper' if account.startswith('paper') else 'replace-one'}",
                    title=f"Perplexity over the epsilon of a random secret, {corpus}, {told}",
                    x_label=f"epsilon at delta = {settings['delta']:g}",
                    y_label="perplexity on held-out text",
                    series=tuple(series),
                    levels=tuple(levels),
                    log_x=True,
                    log_y=True,
                )


def _points(cells: _Cells, method: str, account: str, outcomes: Outcomes) -> tuple[Point, ...]:
    found = []
    for level in cells.levels:
        cell = cells.noisy(method, level)
        x, y = promised(outcomes, cell, account), perplexity(outcomes, cell)
        if x and y is not None:
            found.append(Point(x=x, y=y))
    return tuple(sorted(found, key=lambda point: point.x))


def _findings(places: Places, settings: Settings, outcomes: Outcomes) -> Iterator[Finding]:
    gamma = number(settings["frontier_gamma"])
    yield _told(
        f"CRT is close to non-private training (within {_CLOSE - 1:.0%}), at the strongest promise tried.",
        {
            _where(place): ratio(outcomes, cells.noisy(CRT, 0), cells.nonprivate)
            for place, cells in places.items()
        },
        "times the perplexity",
        _at_most_close,
    )
    yield _told(
        f"CRT with a policy that misses {gamma} predicts better than DP-SGD at no larger epsilon.",
        _at_no_larger_epsilon(places, outcomes, DP_SGD),
        "times the perplexity",
        _below_one,
    )
    yield _told(
        "A perfect policy that only redacts (epsilon = 0) has the perplexity of non-private training "
        f"(within {_CLOSE - 1:.0%}).",
        {
            _where(place): ratio(outcomes, cells.masked(0.0), cells.nonprivate)
            for place, cells in places.items()
        },
        "times the perplexity",
        _at_most_close,
    )
    yield _told(
        "So it does beside selective DP-SGD, even where that has a perfect policy.",
        _at_no_larger_epsilon(places, outcomes, SELECTIVE),
        "times the perplexity",
        _below_one,
    )
    yield _told(
        "The transformer with CRT predicts better than the LSTM with CRT, DP-SGD or selective DP-SGD.",
        {
            f"{corpus}, level {level + 1}, {METHODS[method]}": ratio(
                outcomes,
                places[corpus, TRANSFORMER].noisy(CRT, level),
                places[corpus, LSTM].noisy(method, level),
            )
            for corpus in settings["corpora"]
            for method in places[corpus, LSTM].methods
            for level in places[corpus, LSTM].levels
        },
        "times the perplexity",
        _below_one,
    )
    yield _understated(places, outcomes)


def _at_no_larger_epsilon(places: Places, outcomes: Outcomes, other: str) -> dict[str, Estimate | None]:
    """CRT's best perplexity by another method's, over CRT's points with no larger epsilon than the other's.

    A point of the other method that is to the left of all of CRT's is left out: nothing stands beside it.
    """
    found: dict[str, Estimate | None] = {}
    for place, cells in places.items():
        if other not in cells.methods:
            continue
        own = [cells.noisy(CRT, level) for level in cells.levels]
        for level in cells.levels:
            beside = cells.noisy(other, level)
            bound = promised(outcomes, beside)
            if bound is None:
                continue
            ratios = [
                one
                for cell in own
                if (epsilon := promised(outcomes, cell)) is not None and epsilon <= bound
                if (one := ratio(outcomes, cell, beside)) is not None
            ]
            if ratios:
                name = f"{_where(place)}, epsilon {epsilon_told(bound)}"
                found[name] = min(ratios, key=lambda one: one.value)
    return found


def _understated(places: Places, outcomes: Outcomes) -> Finding:
    found = {
        f"{_where(place)}, level {level + 1}": (
            promised(outcomes, cells.noisy(CRT, level), "paper_one_point"),
            promised(outcomes, cells.noisy(CRT, level)),
        )
        for place, cells in places.items()
        for level in cells.levels
    }
    told = {name: both for name, both in found.items() if None not in both}
    holds = [float(own or 0) <= float(paper or 0) for paper, own in told.values()]
    return Finding(
        claim="The epsilon that the paper's account gives CRT is what confidentiality asks for.",
        here="As printed, and for a secret that a mask replaces: "
        + "; ".join(
            f"{name}: {epsilon_told(paper)} and {epsilon_told(own)}" for name, (paper, own) in told.items()
        )
        + ".",
        outcome="undecided" if not holds else "holds" if all(holds) else "does not hold",
    )


def _where(place: tuple[str, str]) -> str:
    return f"{place[0]}, {NAMES[place[1]]}"


def _told(claim: str, found: Mapping[str, Estimate | None], unit: str, verdict: Any) -> Finding:
    """A claim beside all of its comparisons; one that could not be made decides nothing."""
    known = {name: one for name, one in found.items() if one is not None}
    here = "; ".join(f"{name}: {estimate(one)}" for name, one in known.items())
    outcome: Word = verdict(list(known.values())) if len(known) == len(found) else "undecided"
    return Finding(claim=claim, here=f"{here} {unit}." if here else "Nothing to compare.", outcome=outcome)


def _at_most_close(found: Sequence[Estimate]) -> Word:
    return at_most(_CLOSE)(found)


def _below_one(found: Sequence[Estimate]) -> Word:
    shifted = [
        Estimate(one.value - 1, one.low - 1, one.high - 1, one.confidence, one.method) for one in found
    ]
    return below_zero(shifted)


FRONTIER: Final = Experiment(
    name=_NAME,
    title="What confidentiality costs in perplexity",
    shows="CRT, Figure 2",
    settings=settings_of,
    stages=_stages,
    conclude=_conclude,
    texts=TEXTS,
)
