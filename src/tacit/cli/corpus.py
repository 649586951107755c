"""`tacit corpus`: whose text is whose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tacit.cli import console
from tacit.cli.corpus_options import (
    BlocksOption,
    ChatOption,
    ConfigOption,
    DocumentOption,
    FormatOption,
    MessagesOption,
    RevisionOption,
    SkipBadOption,
    SplitOption,
    TextOption,
    UserOption,
    corpus_section,
)
from tacit.errors import InputError
from tacit.files import refuse_existing
from tacit.recipes import DEFAULT_MODEL, CorpusSection, HeldOutSection

if TYPE_CHECKING:
    from tacit.corpus import UserCorpus
    from tacit.models.tokenizer import PublicTokenizer

app = typer.Typer(
    no_args_is_help=True, help="Whose text is whose: count, simulate, plant, partition, screen."
)

CorpusPath = Annotated[str, typer.Argument(metavar="CORPUS", help="File, folder, or datasets id.")]
ModelOption = Annotated[str, typer.Option(help="Model whose tokenizer counts and cuts.")]


@app.command()
def stats(
    corpus: CorpusPath,
    user: UserOption = None,
    text: TextOption = None,
    messages: MessagesOption = None,
    chat: ChatOption = "template",
    form: FormatOption = "auto",
    document: DocumentOption = "file",
    blocks: BlocksOption = None,
    split: SplitOption = None,
    config: ConfigOption = None,
    revision: RevisionOption = None,
    skip_bad: SkipBadOption = False,
    model: ModelOption = DEFAULT_MODEL,
    tokens: Annotated[bool, typer.Option(help="Count tokens with the model's tokenizer.")] = True,
    as_json: console.JsonFlag = False,
) -> None:
    """Count users, documents, tokens, the largest user's share and duplicate documents.

    Examples:

        tacit corpus stats dialogues.jsonl --user user --text text

        tacit corpus stats mail.parquet --user sender --text body --no-tokens
    """
    from tacit.corpus import summarise

    section = corpus_section(
        corpus,
        user=user,
        text=text,
        messages=messages,
        chat=chat,
        form=form,
        document=document,
        blocks=blocks,
        split=split,
        config=config,
        revision=revision,
        skip_bad=skip_bad,
    )
    tokenizer = _tokenizer_if_needed(section, model, wanted=tokens)
    documents = _read(section, tokenizer)
    summary = summarise(documents, _token_counter(tokenizer if tokens else None, documents))
    content = asdict(summary)
    if not as_json:
        content["largest_user_share"] = f"{summary.largest_user_share:.2%} of {content.pop('measured_in')}"
        content["skipped"] = _skipped(summary.skipped)
    console.show(content, as_json=as_json, title=corpus)


@app.command()
def simulate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL file to write.")],
    users: Annotated[int, typer.Option(help="Customers.")] = 100,
    dialogues: Annotated[int, typer.Option(help="Dialogues of each customer.")] = 5,
    repeat_secrets: Annotated[
        float, typer.Option(help="Chance that a later dialogue gives a secret again; 0 to 1.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed writes the same bytes.")] = 0,
    as_json: console.JsonFlag = False,
) -> None:
    """Write CustomerSim: simulated customer-service dialogues with every secret's gold span.

    Examples:

        tacit corpus simulate dialogues.jsonl --users 200 --dialogues 5

        tacit corpus simulate repeated.jsonl --repeat-secrets 0.5 --seed 7
    """
    from tacit.corpus import SimulationPlan, write_customersim

    plan = SimulationPlan(users=users, dialogues_per_user=dialogues, repeat_secrets=repeat_secrets, seed=seed)
    with console.progress() as progress:
        progress.phase("simulating", users * dialogues)
        write_customersim(plan, out, progress=lambda _: progress.advance(1))
    content = {
        "written": str(out),
        "users": users,
        "dialogues": users * dialogues,
        "columns": "id, user, text, spans",
    }
    console.show(content, as_json=as_json, title="CustomerSim")


@app.command()
def plant(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL file to write.")],
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="JSON file for the secrets.")],
    user: UserOption = None,
    text: TextOption = None,
    form: FormatOption = "auto",
    document: DocumentOption = "file",
    split: SplitOption = None,
    config: ConfigOption = None,
    revision: RevisionOption = None,
    skip_bad: SkipBadOption = False,
    template: Annotated[str, typer.Option(help="Canary text with {secret} and, if wanted, {tag}.")] = (
        "My ID is: {secret}"
    ),
    secret: Annotated[
        Literal["digits", "words"], typer.Option(help="What the secret is made of.")
    ] = "digits",  # noqa: S107 - the kind of secret, not one
    length: Annotated[int, typer.Option(help="Digits or words in a secret.")] = 6,
    prefix: Annotated[
        Literal["distinct", "shared"], typer.Option(help="A prefix for each canary, or one for all.")
    ] = "distinct",
    users: Annotated[int, typer.Option(help="How many users carry canaries.")] = 10,
    owner: Annotated[
        Literal["existing", "new"], typer.Option(help="Plant with users of the corpus, or add users.")
    ] = "existing",
    ladder: Annotated[str, typer.Option(help="Repetitions; each user gets one canary per rung.")] = "1",
    include: Annotated[float, typer.Option(help="Chance of each canary's coin; 0 to 1.")] = 0.5,
    held_out_share: Annotated[
        float, typer.Option(help="Share of users whom training will hold out: they carry no canary.")
    ] = HeldOutSection().share,
    held_out_seed: Annotated[
        int, typer.Option(help="The recipe's held_out.seed, which decides who is held out.")
    ] = HeldOutSection().seed,
    seed: Annotated[int | None, typer.Option(help="For experiments; default: fresh entropy.")] = None,
    model: ModelOption = DEFAULT_MODEL,
    as_json: console.JsonFlag = False,
) -> None:
    """Plant canaries: random secrets whose memorisation can be measured later.

    The manifest holds every secret and is written for its owner alone. Its commitment may be published
    before training: it proves later that the secrets were not chosen afterwards.

    Canaries go to users who stay in training when it holds out by user with --held-out-share, or less, and
    --held-out-seed; the defaults are a recipe's. Rows of JSONL and CSV keep all their columns, those of other
    formats user and text.

    Examples:

        tacit corpus plant dialogues.jsonl planted.jsonl canaries.json --user user --text text

        tacit corpus plant d.jsonl p.jsonl c.json --user user --text text --ladder 1,5,20
    """
    from tacit.corpus import CanaryPlan, draw_canaries, write_planted
    from tacit.models.tokenizer import load_tokenizer
    from tacit.models.words import whole_words

    plan = CanaryPlan(
        template=template,
        secret=secret,
        length=length,
        prefix=prefix,
        users=users,
        owner=owner,
        ladder=_rungs(ladder),
        include=include,
        held_out_share=held_out_share,
        held_out_seed=held_out_seed,
        seed=seed,
    )
    for path in (out, manifest):
        refuse_existing(path)
    if out.resolve() == manifest.resolve():
        raise InputError("OUT and MANIFEST are the same file; give two names.")
    section = corpus_section(
        corpus,
        user=user,
        text=text,
        form=form,
        document=document,
        split=split,
        config=config,
        revision=revision,
        skip_bad=skip_bad,
    )
    tokenizer = load_tokenizer(model)
    documents = _read(section, tokenizer)
    drawn = draw_canaries(
        plan,
        documents.users,
        documents=len(documents),
        characters=sum(len(document.text) for document in documents.documents()),
        words=whole_words(tokenizer),
        token_count=lambda text: len(tokenizer.encode([text])[0]),
    )
    drawn.save(manifest)
    try:
        write_planted(out, section, drawn)
    except BaseException:
        manifest.unlink()  # a manifest of canaries that were never planted would mislead
        raise
    content = {
        "written": str(out),
        "manifest": str(manifest),
        "canaries": len(drawn.canaries),
        "inserted": sum(canary.inserted for canary in drawn.canaries),
        "candidates": str(drawn.candidates),
        "planted_documents": drawn.cost.documents,
        "share_of_documents": drawn.cost.share_of_documents,
        "share_of_characters": drawn.cost.share_of_characters,
        "commitment": drawn.commitment,
    }
    in_training = plan.how_to_keep_in_training(drawn.cost.corpus_documents)
    if as_json:
        content["in_training"] = in_training
    console.show(content, as_json=as_json, title="Canaries")
    console.say(f"note: {in_training}")


@app.command()
def partition(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    parts: Annotated[int, typer.Option(help="Number of parts; each has two halves.")] = 8,
    assign: Annotated[
        Literal["hash", "balanced"], typer.Option(help="Keyed hash of the user id, or equal random parts.")
    ] = "hash",
    key: Annotated[
        Path | None, typer.Option(help="partition.key of an earlier partition: nobody moves.")
    ] = None,
    user: UserOption = None,
    text: TextOption = None,
    messages: MessagesOption = None,
    chat: ChatOption = "template",
    form: FormatOption = "auto",
    document: DocumentOption = "file",
    blocks: BlocksOption = None,
    split: SplitOption = None,
    config: ConfigOption = None,
    revision: RevisionOption = None,
    skip_bad: SkipBadOption = False,
    model: ModelOption = DEFAULT_MODEL,
    tokens: Annotated[bool, typer.Option(help="Count tokens with the model's tokenizer.")] = True,
    as_json: console.JsonFlag = False,
) -> None:
    """Put every user into one part and one half of it, and freeze that.

    OUT/partition.json may be published; OUT/private holds the key and who is where.

    Examples:

        tacit corpus partition dialogues.jsonl parts --parts 8 --user user --text text

        tacit corpus partition more.jsonl parts2 --key parts/private/partition.key --user user --text text
    """
    from tacit.corpus import Partition, read_key

    refuse_existing(out)
    earlier_key = None if key is None else read_key(key)
    section = corpus_section(
        corpus,
        user=user,
        text=text,
        messages=messages,
        chat=chat,
        form=form,
        document=document,
        blocks=blocks,
        split=split,
        config=config,
        revision=revision,
        skip_bad=skip_bad,
    )
    tokenizer = _tokenizer_if_needed(section, model, wanted=tokens)
    documents = _read(section, tokenizer)
    with console.progress():
        made = Partition.create(documents, parts=parts, assign=assign, key=earlier_key)
    made.save(out)
    counter = _token_counter(tokenizer if tokens else None, documents)
    rows = [asdict(row) for row in made.summary(documents, counter)]
    console.show_rows(rows, as_json=as_json, name="halves", title=f"{out}: {parts} parts, {assign}")


def _read(section: CorpusSection, tokenizer: PublicTokenizer | None) -> UserCorpus:
    from tacit.corpus import read_corpus

    with console.progress() as progress:
        return read_corpus(section, tokenizer, progress)


def _tokenizer_if_needed(section: CorpusSection, model: str, *, wanted: bool) -> PublicTokenizer | None:
    from tacit.corpus import needs_tokenizer

    if not (wanted or needs_tokenizer(section)):
        return None
    from tacit.models.tokenizer import load_tokenizer

    return load_tokenizer(model)


def _token_counter(
    tokenizer: PublicTokenizer | None, corpus: UserCorpus
) -> Callable[[Sequence[str]], list[int]] | None:
    if tokenizer is None:
        return None
    control = corpus.has_control_tokens
    return lambda texts: [len(ids) for ids in tokenizer.encode(texts, control_tokens=control)]


def _skipped(skipped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "none"


def _rungs(ladder: str) -> tuple[int, ...]:
    try:
        return tuple(int(rung) for rung in ladder.split(","))
    except ValueError:
        raise InputError(f"--ladder '{ladder:.40}': expected whole numbers such as 1,2,5,20.") from None
