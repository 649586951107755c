"""Ours: all methods on one corpus, by what leaks, what is promised and what it costs.

Everybody can repeat it: the text is simulated, and the public model learns from other simulated users. The
methods stand side by side at one perplexity that all of them reach, and each along its own dial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.overview_cost import COST, answering_cost, cost_stage, training_cost
from tacit.experiments.overview_ground import (
    CERTIFIED,
    CRT,
    DP_SGD,
    PREDICTED,
    PUBLIC,
    SUBMIX,
    UNMITIGATED,
    settings_of,
    stages_of,
)
from tacit.experiments.overview_levels import (
    NULL,
    Place,
    bits,
    completed,
    exposure,
    exposure_change,
    levels_of,
    membership,
    methods_of,
    places_of,
)
from tacit.experiments.overview_promises import METHODS, promise, weakest
from tacit.experiments.reg_levels import Level, below_zero
from tacit.experiments.results import Cell, Chart, Finding, Point, Series, Table
from tacit.experiments.stages import Stage, Workshop
from tacit.experiments.submix_tables import all_above, all_below
from tacit.report.words import estimate, number, percent, plural
from tacit.statistics import Estimate

NAME: Final = "overview"
_BIT: Final = 1.0  # above what a code that was never seen has
_PROMISING: Final = (DP_SGD, CRT, SUBMIX, CERTIFIED)
_LEAKS: Final = 2.0  # bits above that, from which on the text is told to leak where nothing protects it


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    return [*stages_of(workshop, settings), cost_stage(settings)]


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    levels = levels_of(settings, outcomes)
    places = {method: places_of(settings, outcomes, method) for method in (PUBLIC, *methods_of(settings))}
    tables = [*(_equal(settings, outcomes, places, level) for level in levels), _along(settings, places)]
    return Conclusion(
        conditions=_conditions(settings, levels),
        tables=tuple(tables),
        charts=(_picture(settings, places),),
        findings=tuple(_findings(settings, places, levels)),
        caveats=_caveats(settings),
        summary=_summary(settings, outcomes, places, levels[-1]) if levels else (),
    )


def _summary(
    settings: Settings, outcomes: Outcomes, places: Mapping[str, Sequence[Place]], level: Level
) -> tuple[str, ...]:
    """Four sentences: what leaks, what helps without a promise, what with one, and what it costs."""
    longest, ladder = places[UNMITIGATED][-1].level, _ladder(settings)
    training, answering = training_cost(outcomes[COST]), answering_cost(outcomes[COST])

    def leaks(methods: Sequence[str], *, promised: bool = False) -> str:
        told = []
        for method in methods:
            if method not in level.methods:
                told.append(f"{METHODS[method]} does not reach it")
                continue
            words = promise(settings, method, *weakest(settings, level, method))
            shown = f"{METHODS[method]} {estimate(exposure(settings, level, method))}"
            told.append(f"{shown} ({words})" if promised else shown)
        return ", ".join(told)

    def costs(methods: Sequence[str], found: Mapping[str, Estimate | float]) -> str:
        ratios = {method: found[method] for method in methods}
        return ", ".join(
            f"{METHODS[method]} {estimate(one) if isinstance(one, Estimate) else number(one)}"
            for method, one in ratios.items()
        )

    steered = [method for method in methods_of(settings)[1:] if method not in _PROMISING]
    measured = [method for method, one in training.items() if isinstance(one, Estimate)]
    leaked = estimate(exposure(settings, longest, UNMITIGATED, ladder[-1:]))
    (public,) = places[PUBLIC]
    return (
        f"Without protection a small model that is fine-tuned gives codes away which were repeated "
        f"{ladder[-1]} times: their exposure is {leaked} bits, where one that was never seen has "
        f"{number(NULL)} and {number(bits(settings))} are all there are.",
        f"At perplexity {number(level.perplexity)} (the public model has {number(public.perplexity.value)}) "
        f"the exposure of all codes is {leaks([UNMITIGATED])} bits, and with methods that promise nothing "
        f"{leaks(steered)}.",
        f"With a promise, at the same perplexity: {leaks(_PROMISING, promised=True)}.",
        f"Training takes so many times as long as plain training: {costs(measured, training)}; a token of an "
        f"ensemble, so many times as one of a single model, as small as these are: "
        f"{costs(PREDICTED, answering)}.",
    )


def _equal(
    settings: Settings, outcomes: Outcomes, places: Mapping[str, Sequence[Place]], level: Level
) -> Table:
    training, answering = training_cost(outcomes[COST]), answering_cost(outcomes[COST])
    rows: list[tuple[Cell, ...]] = []
    for method in methods_of(settings):
        leaks: tuple[Cell, ...]
        if method in level.methods:
            leaks = (
                exposure(settings, level, method),
                completed(settings, level, method),
                membership(level, method),
                promise(settings, method, *weakest(settings, level, method)),
            )
        else:
            best = min((one.perplexity.value for one in places[method]), default=None)
            leaks = (
                f"not reached; {number(best)} at best",
                None,
                None,
                promise(settings, method, None, None),
            )
        rows.append((METHODS[method], *leaks, training[method], answering[method]))
    return Table(
        title=f"At perplexity {number(level.perplexity)}, {level.name}",
        columns=(
            "method",
            "mean exposure, bits",
            "completed by tab",
            "membership, AUC",
            "promise",
            "time of training, of plain",
            "time of a token, of one model",
        ),
        rows=tuple(rows),
    )


def _along(settings: Settings, places: Mapping[str, Sequence[Place]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method, along in places.items():
        for place in along:
            run = place.runs[0]
            rows.append(
                (
                    METHODS.get(method, method),
                    None if place.dial is None else f"{_dial(settings, method)} {place.dial:g}",
                    place.perplexity,
                    *(exposure(settings, place.level, method, [one]) for one in _ladder(settings)),
                    completed(settings, place.level, method),
                    place.membership,
                    "none needed"
                    if method == PUBLIC
                    else promise(settings, method, place.dial, run if "guarantee" in run else None),
                    min(float(one["answers"]) for one in place.runs) if method in PREDICTED else None,
                )
            )
    return Table(
        title="Along every dial",
        columns=(
            "method",
            "dial",
            "perplexity",
            *(f"exposure of codes repeated {one}x" for one in _ladder(settings)),
            "completed by tab",
            "membership, AUC",
            "promise",
            "answers that its budget pays for",
        ),
        rows=tuple(rows),
    )


def _picture(settings: Settings, places: Mapping[str, Sequence[Place]]) -> Chart:
    (public,) = places[PUBLIC]

    def point(place: Place) -> Point:
        shown = exposure(settings, place.level, place.method)
        return Point(x=place.perplexity.value, y=shown)

    series = []
    for method in methods_of(settings):
        shown = places[method]
        if shown:
            last = shown[-1]
            run = last.runs[0]
            told = promise(settings, method, last.dial, run if "guarantee" in run else None)
            points = tuple(map(point, (public, *shown)))
            series.append(Series(name=METHODS[method], points=points, note=told))
    return Chart(
        name=NAME,
        title="What leaks at what perplexity, and what is promised at the lower end of each line",
        x_label="perplexity on held-out text (the public model is on the right)",
        y_label="mean exposure of codes, bits",
        series=tuple(series),
        log_x=False,
    )


def _findings(
    settings: Settings, places: Mapping[str, Sequence[Place]], levels: Sequence[Level]
) -> Iterator[Finding]:
    most, ladder = places[UNMITIGATED][-1:], _ladder(settings)
    leaked = [exposure(settings, place.level, UNMITIGATED, ladder[-1:]) for place in most]
    yield Finding(
        claim=f"Without protection, codes that were repeated {ladder[-1]} times leak: by more than "
        f"{_LEAKS:g} bits above what one that was never seen has ({number(NULL)}).",
        here=f"{', '.join(map(estimate, leaked))} bits after {most[0].dial:g} epochs."
        if most
        else "No training of them came to an end.",
        outcome=all_above(leaked, NULL + _LEAKS),
    )
    for method in _PROMISING:
        ends = places[method][-1:]
        shown = [exposure(settings, place.level, method) for place in ends]
        yield Finding(
            claim=f"{METHODS[method]} keeps codes within {_BIT:g} bit of those that were never seen, at the "
            "weakest promise that was tried.",
            here=f"Mean exposure {', '.join(map(estimate, shown))} bits at perplexity "
            f"{', '.join(estimate(place.perplexity) for place in ends)}.",
            outcome=all_below(shown, NULL + _BIT),
        )
    for method in methods_of(settings)[1:]:
        found = {
            level.perplexity: exposure_change(settings, level, method, UNMITIGATED)
            for level in levels
            if method in level.methods
        }
        told = "; ".join(
            f"{estimate(one)} bits at perplexity {number(where)}" for where, one in found.items()
        )
        yield Finding(
            claim=f"At equal perplexity {METHODS[method]} exposes codes less than no protection.",
            here=f"The difference is {told}." if told else "It reaches neither perplexity.",
            outcome=below_zero(list(found.values())),
        )


def _conditions(settings: Settings, levels: Sequence[Level]) -> tuple[str, ...]:
    corpus, canaries, measured = settings["corpus"], settings["canaries"], settings["measured"]
    prediction, ensemble = settings["prediction"], settings["ensemble"]
    planted = canaries["users"] * sum(canaries["ladder"])
    where = " and ".join(f"{number(one.perplexity)} ({one.name})" for one in levels) or "none"
    return (
        f"CustomerSim: {corpus['users']} users with {plural(corpus['dialogues'], 'dialogue')} each, every "
        f"turn a document; {corpus['held_out']} more are held out.",
        f"{canaries['users']} users carry codes of {canaries['digits']} digits, repeated "
        f"{', '.join(map(str, canaries['ladder']))} times: {planted:,} turns like "
        '"apple arrow code is 123". Exposure is by exact rank among all codes.',
        "Screening takes the corpus's own labels, of which it misses "
        f"{percent(settings['policy']['miss_rate'])}.",
        _model(settings),
        f"{ensemble['parts']} parts of two halves each; certified mixing counts every half as a part. "
        f"Budgets of order {prediction['order']:g} in equal shares over {prediction['queries']:,} answers; "
        "leakage and perplexity are those of the mixture while the budget lasts.",
        f"{measured['turns']} held-out turns and {measured['members']} turns with secrets that were trained "
        "on are measured; perplexity is per token.",
        f"{plural(len(settings['seeds']), 'training')} of each, with seeds "
        f"{', '.join(map(str, settings['seeds']))}: codes, screening, partition and order of the text are "
        "the seed's; text and public model are the same.",
        f"Methods are compared at perplexities between the public model's and the best without protection: "
        f"{where}. Each is interpolated between two places of its dial over log(perplexity); every dial "
        "begins at the public model.",
    )


def _model(settings: Settings) -> str:
    model, training = settings["model"], settings["training"]
    dials = "; ".join(
        f"{METHODS[method]} {_dial(settings, method)} {', '.join(f'{one:g}' for one in along['values'])}"
        for method, along in settings["methods"].items()
    )
    if "name" in model:
        public = f"The public model is {model['name']}."
    else:
        read = model["read"]
        public = (
            f"The public model is an LSTM with {plural(model['layers'], 'layer')} of {model['hidden']} over "
            f"{model['vocabulary']:,} words, which read the turns of {read['users']} other simulated users "
            f"{plural(read['epochs'], 'time')}."
        )
    return (
        f"{public} All its weights are trained, in batches of {training['batch_size']} at learning rate "
        f"{training['learning_rate']:g} (private steps: as their recipes say); {dials}."
    )


def _caveats(settings: Settings) -> tuple[str, ...]:
    often = settings["canaries"]["ladder"][-1]
    return (
        "A small model on simulated text: what a method does to another text has to be tried there.",
        f"A code that is repeated {often} times is a group of {often} turns to DP-SGD, whose promise is "
        "about one.",
        "Noise and codes come from seeds so that the Runs can be repeated: weights are released from others.",
        "An ensemble's weights stay with their owner; what is attacked is what it answers. All others are "
        "attacked by their weights.",
        "CRT's screening is told what share of secrets it misses; elsewhere that has to be measured.",
        "CRT learns from what is left once repeats and secrets are masks. Held-out turns have their secrets, "
        "which it never learns to expect, and of their other words the public model knows most.",
        "The privacy losses' weights are fixed. DP-SGD and CRT have learning rates and epochs of their own, "
        "chosen among a handful by perplexity with one seed; no other method was tuned.",
    )


def _dial(settings: Settings, method: str) -> str:
    if method in PREDICTED:
        return "epsilon"
    return str(settings["methods"][method]["dial"]).rpartition(".")[2]


def _ladder(settings: Settings) -> list[int]:
    return list(settings["canaries"]["ladder"])


OVERVIEW: Final = Experiment(
    name=NAME,
    title="All methods on one corpus",
    shows="ours",
    settings=settings_of,
    stages=_stages,
    conclude=_conclude,
)
