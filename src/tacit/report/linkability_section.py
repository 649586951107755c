"""The section about linkability: who wrote a text, told from a model's state at its end."""

from __future__ import annotations

from tacit.audit.linkability_parts import Linkability
from tacit.report.charts_of_cost import Bar, bars
from tacit.report.sections import Figure, Section, Table, plain
from tacit.report.words import estimate, methods, p_sentence, p_value, percent, plural, share
from tacit.statistics import Estimate


def linkability(found: Linkability | None) -> Section:
    """How well a fresh probe names authors. It describes: no sentence here calls it a leak."""
    section_id, title = "linkability", "Linkability"
    if found is None:
        return Section(
            section_id,
            title,
            missing="No probe was asked to name authors. It needs two authors or more with four different "
            "texts each; held_out.by=within gives it text that the model never saw.",
        )
    by = "" if found.label is None else f" (by column {found.label})"
    sentences = [
        f"From the state in which the model ends a text, a probe that was trained afterwards names the "
        f"author{by} of {share(found.run.accuracy)} of {plural(found.scored, 'text')} among "
        f"{plural(found.authors, 'author')}; always naming the most frequent one is right for "
        f"{percent(found.chance.most_frequent)} ({p_sentence(found.run.p_value)}, by orders of authors).",
        f"In the public model, which saw none of the text, it is {share(found.public.accuracy)}: authors "
        "write differently, and any model's states show it. What training changed: "
        f"{_change(found.above_public)}",
    ]
    if found.control is not None and found.above_control is not None:
        sentences.append(
            f"In the control, a model without protection, it is {share(found.control.accuracy)}. What "
            f"protection changed: {_change(found.above_control)}"
        )
    if found.discriminator is not None:
        sentences.append(
            f"In training, the discriminator named {percent(found.discriminator.accuracy)} of the last "
            f"epoch's authors (most frequent author: {percent(found.discriminator.most_frequent_author)}); "
            "the model learnt against that one, so that the fresh probe is the measure."
        )
    sentences.append(
        f"{found.what} Linkability of states is a proxy: it is not counted as a leak, and a low one does not "
        "show that no training text comes out."
    )
    models = [("this Run", found.run), ("public model", found.public)]
    models += [] if found.control is None else [("without protection", found.control)]
    figure = Figure(
        "linkability-figure",
        "Texts whose author a fresh probe names",
        bars(
            "linkability-figure",
            "Share of texts whose author a fresh probe names",
            [Bar(name, one.accuracy, found.chance.most_frequent) for name, one in models],
            label="authors named",
            across="whose states",
        ),
        Table(
            "Authors named",
            ("states of", "named", "among the first five", "p", "probe"),
            tuple(
                (name, share(one.accuracy), share(one.among_first), p_value(one.p_value), one.probe)
                for name, one in models
            ),
            methods(one.accuracy for _, one in models),
        ),
        plain(found),
        f"The probe learnt from {plural(found.learnt, 'text')}; which kind it is was decided on some of "
        "these. It is a lower bound: a better probe may name more.",
    )
    return Section(section_id, title, tuple(sentences), (figure,))


def _change(difference: Estimate) -> str:
    if difference.low <= 0 <= difference.high:
        return f"{estimate(difference)}, an interval that holds 0: no difference is shown."
    return f"{estimate(difference)}, authors are {'easier' if difference.value > 0 else 'harder'} to name."
