"""A Hugging Face model card: what may be published about a Run.

Without being asked for more, the card holds what ``run.json`` holds without its local paths, column names and
seeds, and the *words* of the audit's verdicts. Numbers measured on private text are functions of it that no
guarantee covers; they enter only with ``include_measurements=True``, and the card then says so. The verdict
words are such functions too, a few bits of them, and the card says that as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tacit.audit.audit_file import Audit, parse_audit
from tacit.errors import InputError
from tacit.files import new_file
from tacit.recipes import DEFAULT_MODEL
from tacit.report.guarantee_words import HEADLINES, in_words, measure_of
from tacit.report.words import clean, estimate, number, p_sentence, percent, share
from tacit.runs import Manifest, Run

FILE_NAME = "README.md"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
_EMBEDDED_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
# What of a recipe is public whatever the text: numbers and words that the recipe's own types close. Paths,
# column names, keys and seeds are not here: a seed lets anybody repeat a draw that was meant to be secret.
_PUBLIC_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "adapter": ("kind", "rank", "alpha", "dropout", "trunk_layers"),
    "training": (
        "epochs", "max_steps", "block_size", "batch_size", "accumulate", "learning_rate", "weight_decay",
        "warmup", "clip",
    ),
    "ensemble": ("parts", "halves", "assign"),
    "privacy": ("epsilon", "noise_multiplier", "delta", "clip", "clipping", "unit", "adjacency", "group"),
    "confidentiality": ("gamma", "delta2"),
    "regularisation": (
        "lambda", "schedule", "ramp", "batches", "hidden", "discriminator_rate", "pairs", "margin",
        "paper_eq4",
    ),
    "held_out": ("share", "by"),
}  # fmt: skip
_METHODS = {
    "finetune": "plain fine-tuning, without protection",
    "submix": "an ensemble on disjoint parts of the text, whose answers are mixed with the public model's",
    "dpsgd": "DP-SGD: clipped gradients of single examples, and noise",
    "crt": "confidentially redacted training: secrets masked, plain steps on public text, DP-SGD on the rest",
    "adversarial": "privacy regularisation: a discriminator that is left guessing who wrote a text",
    "triplet": "privacy regularisation: different authors' states pulled together, one author's pushed apart",
    "selective": "selective DP-SGD: noise on what a policy calls sensitive, and nowhere else",
}
_CLAIM_LINES = {
    "supported": "The audit supports what is claimed.",
    "contradicted": "The audit contradicts what is claimed.",
    "inconclusive": "The audit could neither contradict nor support what is claimed.",
}


def model_card(
    manifest: Manifest, audit: Mapping[str, Any] | None = None, *, include_measurements: bool = False
) -> str:
    """``README.md`` of a Run, with front matter; ``audit`` is the content of ``audit.json``, if any."""
    found = None if audit is None else parse_audit(audit)
    if include_measurements and found is None:
        raise InputError("include_measurements=True needs an audit; run `tacit audit` first.")
    front = yaml.safe_dump(_front_matter(manifest), sort_keys=False, allow_unicode=True)
    parts = [
        f"---\n{front}---",
        f"# {_text(_title(manifest))}",
        _release(manifest),
        _training(manifest),
        _guarantee(manifest),
        _audit(found, include_measurements=include_measurements),
        _limits(found),
        _intended(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_model_card(
    run: Run,
    audit: Mapping[str, Any] | None = None,
    *,
    include_measurements: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write ``README.md`` into a Run: beside the weights and not among them, whose hashes are on record."""
    text = model_card(run.manifest, audit, include_measurements=include_measurements)
    path = run.folder / FILE_NAME
    # Measurements are the operator's until the operator hands them on.
    with new_file(path, private=include_measurements, overwrite=overwrite) as handle:
        handle.write(text.encode())
    return path


def _front_matter(manifest: Manifest) -> dict[str, Any]:
    libraries = {"adapter": "peft", "model": "transformers"}
    front: dict[str, Any] = {}
    base = _hub_id(manifest)
    if base is not None:
        front["base_model"] = base
    if manifest.weights in libraries:
        front["library_name"] = libraries[manifest.weights]
    if manifest.public_model.family == "transformer":
        front["pipeline_tag"] = "text-generation"
    front["tags"] = ["tacit", "privacy", f"tacit-{clean(manifest.method)}", f"guarantee-{_kind(manifest)}"]
    return front


def _hub_id(manifest: Manifest) -> str | None:
    """The hub's name of the public model, where it has one; a folder's would be a path of the operator's."""
    model = manifest.public_model
    if model.name == DEFAULT_MODEL:
        return _EMBEDDED_ID
    # Only what came from the hub has a revision; a relative folder looks like an id without being one.
    return model.name if model.revision is not None and _HUB_ID.fullmatch(model.name) else None


def _model_in_words(manifest: Manifest) -> str:
    base = _hub_id(manifest)
    if base is not None:
        return f"`{base}`"
    return f"A public {manifest.public_model.family} model that is not on the hub"


def _kind(manifest: Manifest) -> str:
    return str(manifest.guarantee.get("kind", "none"))


def _title(manifest: Manifest) -> str:
    base = _hub_id(manifest)
    name = base.rsplit("/", 1)[-1] if base else f"A {manifest.public_model.family} model"
    return f"{name}, {manifest.method} with tacit"


def _release(manifest: Manifest) -> str:
    if manifest.may_be_released and manifest.weights != "members":
        return ""
    what = (
        "The members of this ensemble must never be released: only their mixed answers carry the guarantee."
        if manifest.weights == "members"
        else "These weights must not be published: nothing covers them, and they may repeat training text."
    )
    return f"> **Not for release.** {what}"


def _training(manifest: Manifest) -> str:
    public = _kind(manifest) == "public"
    what = "text that its owner declared public" if public else "private text that is not named here"
    settings = [
        f"| {section}.{name} | {_setting(value)} |"
        for section, names in _PUBLIC_SETTINGS.items()
        for name in names
        if isinstance(content := manifest.recipe.get(section), Mapping)
        and (value := content.get(name)) is not None
        and isinstance(value, bool | int | float | str)
    ]
    lines = [
        "## What it is",
        f"{_model_in_words(manifest)}, trained on {what}. Method: "
        f"{_text(_METHODS.get(manifest.method, manifest.method))}.",
    ]
    if settings:
        lines.append("\n".join(["| setting | value |", "|---|---|", *settings]))
    versions = ", ".join(f"{_text(name)} {_text(version)}" for name, version in manifest.versions.items())
    if versions:
        lines.append(f"Made with {versions}.")
    return "\n\n".join(lines)


def _guarantee(manifest: Manifest) -> str:
    guarantee = manifest.guarantee
    kind = _kind(manifest)
    lines = ["## Guarantee"]
    if kind in HEADLINES and "unit" in guarantee:
        lines += [f"**{HEADLINES[kind]}.**", *(_text(sentence) for sentence in in_words(guarantee))]
    lines.append(f"> {_text(guarantee['statement'])}")
    assumptions = guarantee.get("assumptions") or ()
    if assumptions:
        lines.append("It holds if:\n\n" + "\n".join(f"- {_text(one)}" for one in assumptions))
    if manifest.method == "crt":
        lines.append("What is promised about secrets, in full: `certificate.json` beside this file.")
    lines.append("The same for programs: `privacy.json` beside this file.")
    return "\n\n".join(lines)


def _audit(audit: Audit | None, *, include_measurements: bool) -> str:
    if audit is None:
        return "## Audit\n\nThis Run was not attacked: nothing is known beyond its guarantee."
    lines = ["## Audit", f"**{_verdict_line(audit)}**"]
    if audit.claims:
        lines.append("\n".join(f"- {_text(claim.claim)}: **{claim.verdict}**" for claim in audit.claims))
    lines.append(
        "*Supported*: an audit that could have seen more than was claimed saw no more. *Contradicted*: more "
        "was seen than was claimed. *Inconclusive*: the audit could not have told, which is no evidence of "
        "safety."
    )
    if include_measurements:
        lines.append(_measurements(audit))
    else:
        lines.append(
            "These words were found with the private text, and no guarantee covers them. Measured numbers "
            "are the operator's and are left out."
        )
    return "\n\n".join(lines)


def _verdict_line(audit: Audit) -> str:
    """What became of the claim, if there is one, and whether an attack beat chance, if that was asked."""
    lines = [_CLAIM_LINES[audit.word]] if audit.claims and audit.promises else []
    if audit.verdict.leaks:
        within = " within it" if audit.word == "supported" else ""
        lines.append(f"The audit found a leak{within}.")
    elif audit.verdict.leaks is False and audit.word != "contradicted":
        lines.append("The audit found no leak.")
    return " ".join(lines) or "The audit could not tell whether something leaks."


def _measurements(audit: Audit) -> str:
    rows: list[tuple[str, str, str]] = []
    if audit.utility is not None:
        rows.append(
            ("perplexity", estimate(audit.utility.run), f"public model {estimate(audit.utility.public)}")
        )
    if audit.exposure is not None:
        null = audit.exposure.null
        inserted = [row.exposure for row in audit.exposure.rows if row.inserted]
        if inserted:
            largest = max(inserted, key=lambda one: one.value)
            rows.append(
                (
                    "largest exposure (bits)",
                    estimate(largest),
                    f"by chance below {number(null.largest_limit)} ({percent(null.confidence)}); "
                    f"{_tested(audit.exposure.largest.adjusted)}",
                )
            )
    if audit.membership is not None:
        for one in audit.membership.sets:
            flag = "; told apart by text alone, says little" if one.flagged else ""
            first = one.primary
            rows.append(
                (f"membership, {one.name}: AUC ({first.name})", estimate(first.auc), f"guessing 0.5{flag}")
            )
    if audit.extraction is not None and audit.extraction.tab is not None:
        tab = audit.extraction.tab
        rows.append(("secrets completed", share(tab.accuracy), f"public model {share(tab.public)}"))
    if audit.linkability is not None:
        link = audit.linkability
        rows.append(
            (
                f"authors named from a state, of {link.authors}",
                share(link.run.accuracy),
                f"public model {share(link.public.accuracy)}; most frequent author "
                f"{percent(link.chance.most_frequent)}",
            )
        )
    for claim in audit.claims:
        if claim.measured_epsilon is not None:
            rows.append(
                (
                    f"{measure_of(audit.guarantee.kind)}: {claim.claim}",
                    f"at least {number(claim.measured_epsilon)}",
                    f"claimed {number(claim.claimed_epsilon)}"
                    + (
                        ""
                        if claim.detectable_epsilon is None
                        else f"; detectable {number(claim.detectable_epsilon)}"
                    ),
                )
            )
    table = ["| measured | value | against |", "|---|---|---|"]
    table += [f"| {_text(name)} | {_text(value)} | {_text(against)} |" for name, value, against in rows]
    return (
        "The numbers below were measured on private text. No guarantee covers them; the operator chose to "
        "publish them.\n\n" + "\n".join(table)
    )


def _tested(corrected: float | None) -> str:
    """A p-value as the headline judged it: uncorrected ones would find something in every twentieth card."""
    return "describes" if corrected is None else f"{p_sentence(corrected)} after correction"


def _limits(audit: Audit | None) -> str:
    limits = ["Attacks show that something leaks; they never show that nothing does."]
    if audit is not None:
        limits += audit.not_covered
    return "## Limits\n\n" + "\n".join(f"- {_text(one)}" for one in limits)


def _intended(manifest: Manifest) -> str:
    if manifest.weights == "members":
        use = "Answers through `tacit serve` or `tacit generate`, which charge every token against a budget."
    else:
        use = "Text generation in the domain of its training, by people who have read the guarantee above."
    return (
        f"## Intended use\n\n{use} Whoever builds on it answers for what they do with it; the terms of the "
        "public model apply."
    )


def _setting(value: Any) -> str:
    return _text(f"{value:g}" if isinstance(value, float) else str(value))


def _text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return _MARKDOWN.sub(r"\\\1", clean(text)).strip()
