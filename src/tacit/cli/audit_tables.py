"""What `tacit audit` prints: the verdict, then a table for each attack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.cli import console

if TYPE_CHECKING:
    from tacit.audit.record import AuditRecord


def show_audit(found: AuditRecord) -> None:
    """A whole audit for people."""
    from tacit.audit.audit_file import RunPart

    console.out.print(found.line, markup=False)
    console.out.print(f"Guarantee: {found.guarantee['statement']}", markup=False)
    if (mu := RunPart.model_validate(dict(found.run)).gaussian_dp) is not None:
        console.out.print(str(mu), markup=False)
    rows = [
        {
            "verdict": claim.verdict,
            # What holds for one corpus is a divergence in nats, and no epsilon.
            "claimed_nats" if found.guarantee["kind"] == "rop" else "claimed_epsilon": claim.claimed_epsilon,
            "shown_at_least": claim.measured_epsilon,
            "without_protection": claim.control_epsilon,
            "could_have_shown": claim.detectable_epsilon,
            "delta": claim.delta,
            "reason": claim.reason,
        }
        for claim in found.claims
    ]
    for column in ("without_protection", "could_have_shown"):  # of some kinds of audits only
        if all(row[column] is None for row in rows):
            rows = [{name: value for name, value in row.items() if name != column} for row in rows]
    if rows:
        title = f"Claims (confidence {found.claims[0].confidence:g})"
        console.show_rows(rows, as_json=False, name="claims", title=title)
    _show_attempts(found)
    _show_utility(found.sections.get("utility"), found.sections.get("disparity"))
    _show_private_answers(found.sections.get("prediction"))
    _show_exposure(found.sections.get("exposure"))
    _show_membership(found.sections.get("membership"))
    _show_completions(found.sections.get("extraction"))
    _show_linkability(found.sections.get("linkability"))
    for note in found.notes:
        console.out.print(note, markup=False)


def _show_attempts(found: AuditRecord) -> None:
    rows = [
        {
            "attack": one.attack,
            "measured": str(one.measured),
            "by_chance": one.chance,
            "p_value": one.p_value,
            "p_value_corrected": one.adjusted,
            "named_beforehand": one.named,
            "leaks": one.leaks(found.level),
        }
        for one in found.attempts
    ]
    if rows:
        title = f"Does anything leak? A corrected p-value of at most {found.level:.4g} says so"
        console.show_rows(rows, as_json=False, name="attempts", title=title)


def _show_utility(utility: dict[str, Any] | None, disparity: dict[str, Any] | None) -> None:
    if utility is not None:
        named = {"public": "the public model", "run": "this Run", "unmitigated": "without protection"}
        rows = [
            {"of": name, "perplexity": _interval(utility[key])}
            for key, name in named.items()
            if utility[key] is not None
        ]
        console.show_rows(rows, as_json=False, name="utility", title="Perplexity on held-out text")
    if disparity is not None:
        named = {"mean": "all", "top": "with most samples", "bottom": "with fewest", "gap": "gap"}
        rows = [{"users": name, "change": _interval(disparity[key])} for key, name in named.items()]
        title = f"Who pays: change of perplexity against {disparity['against']}"
        console.show_rows(rows, as_json=False, name="disparity", title=title)


def _show_private_answers(section: dict[str, Any] | None) -> None:
    if section is None:
        return
    detail = section.get("detail") or {}
    texts = {"on_canaries": "canaries", "on_held_out": "held-out text"}
    rows = [
        {
            "answers_on": name,
            "queries": losses["queries"],
            "above_their_charge": losses["excess"],
            "verdict": losses["verdict"],
        }
        for key, name in texts.items()
        if (losses := detail.get(key)) is not None
    ]
    if rows:
        title = "What answers cost, recomputed from the definition, against what was charged"
        console.show_rows(rows, as_json=False, name="charges", title=title)
    rows = [
        {
            "part": one["part"],
            "transcripts": one["transcripts"],
            "auc": _interval(one["auc"]),
            f"{one['measure']}_at_least": one["epsilon_lower"],
            "claimed": one["claimed_epsilon"],
            "verdict": one["verdict"],
        }
        for one in section["likelihood_ratio"]
    ]
    if rows:
        title = "The best possible attack on whether a part was there"
        console.show_rows(rows, as_json=False, name="transcripts", title=title)


def _show_exposure(section: dict[str, Any] | None) -> None:
    if section is None or not section["per_repetition"]:
        return
    rows = [
        {
            "repetitions": row["repetitions"],
            "canaries": row["canaries"],
            "mean_bits": _interval(row["mean"]),
            "largest": row["largest"],
            "largest_by_chance": row["null_largest_limit"],
        }
        for row in section["per_repetition"]
    ]
    null = section["null"]
    title = (
        f"Exposure of inserted canaries among {int(section['candidates']):,}; by chance "
        f"{null['mean']:.3g} bits, {null['confidence']:.4g} below {null['limit']:.3g}"
    )
    console.show_rows(rows, as_json=False, name="exposure", title=title)


def _show_membership(section: dict[str, Any] | None) -> None:
    for one in () if section is None else section["sets"]:
        rows = [
            {
                "attack": attack["name"],
                "auc": _interval(attack["auc"]),
                "p_value_corrected": attack["adjusted"],
                "accuracy": _interval(attack["accuracy"]),
                "always_one_answer": attack["accuracy_chance"],
            }
            for attack in one["attacks"]
        ]
        flagged = ", FLAGGED: the texts alone tell them apart" if one["flagged"] else ""
        title = (
            f"Membership of {one['name']}: {one['members']:,} in, {one['non_members']:,} out, "
            f"{_confidence(one['attacks'][0]['auc'])}{flagged}"
        )
        console.show_rows(rows, as_json=False, name="membership", title=title)
        if one["groups"] is not None:
            _show_groups(one["name"], one["groups"])


def _show_groups(name: str, section: dict[str, Any]) -> None:
    rows = [
        {
            "score": attack["name"],
            "auc": _interval(attack["auc"]),
            "p_value_corrected": attack["adjusted"],
            "at_the_median": _interval(attack["accuracy_at_median"]),
        }
        for attack in section["attacks"]
    ]
    title = f"{section['groups']:,} groups of {section['size']} {name}; secrets are resampled, "
    title += _confidence(section["attacks"][0]["auc"])
    console.show_rows(rows, as_json=False, name="groups", title=title)


def _show_completions(section: dict[str, Any] | None) -> None:
    if section is None:
        return
    tab, real = section["tab"], section["tab_real"]
    rows = []
    if tab is not None:
        rows.append(
            {"texts": "canaries", "completed": _interval(tab["accuracy"]), "else": _interval(tab["public"])}
        )
    if real is not None:
        others = "" if real["others"] is None else _interval(real["others"])
        rows.append({"texts": real["source"], "completed": _interval(real["accuracy"]), "else": others})
    title = "Completed from the first token; else: by the public model, or of users who were held out"
    console.show_rows(rows, as_json=False, name="completions", title=title)


def _show_linkability(section: dict[str, Any] | None) -> None:
    if section is None:
        return
    named = {"this Run": "run", "the public model": "public", "the control": "control"}
    rows = [
        {
            "states_of": name,
            "authors_named": _interval(found["accuracy"]),
            "among_five": _interval(found["among_first"]),
            "p_value": found["p_value"],
            "probe": found["probe"],
        }
        for name, key in named.items()
        if (found := section[key]) is not None
    ]
    chance = section["chance"]
    title = (
        f"Linkability: {section['scored']:,} texts of {section['authors']} authors, named by a fresh probe; "
        f"most frequent author {chance['most_frequent']:.3g}, one of all {chance['one_of_all']:.3g}. It "
        "describes, and is no leak by itself"
    )
    console.show_rows(rows, as_json=False, name="linkability", title=title)
    guessed = section["discriminator"]
    if guessed is not None:
        console.out.print(
            f"In training, the discriminator named {guessed['accuracy']:.3g} of the last epoch's authors "
            f"(most frequent author {guessed['most_frequent_author']:.3g}).",
            markup=False,
        )


def _confidence(estimate: dict[str, Any]) -> str:
    return f"{estimate['confidence']:.4g} confidence"


def _interval(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return ""
    low, high = (
        ("-inf" if estimate["low"] is None else f"{estimate['low']:.3g}"),
        ("inf" if estimate["high"] is None else f"{estimate['high']:.3g}"),
    )
    return f"{estimate['value']:.3g} [{low}, {high}]"
