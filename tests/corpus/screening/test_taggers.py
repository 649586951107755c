"""Other people's detectors as scorers: Hugging Face classifiers, Flair-like taggers, Presidio."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

from tacit.corpus.screening import MASK, FlairScorer, Policy, Screening, ScreenSettings
from tacit.corpus.screening.policy_file import chosen_policy
from tacit.corpus.screening.presidio import PresidioScorer
from tacit.corpus.screening.tagger_rules import PAPER_CONSERVATIVE, PAPER_REDACT, kind_of, paper_score
from tacit.corpus.screening.token_classifier import TokenClassifier
from tacit.errors import DownloadFailed, InputError, MissingExtra, ModelError, RecipeError
from tests.corpus.screening.detectors import documents

LABELS = ("O", "B-PER", "I-PER")
PIECES = ("[UNK]", "[PAD]", "Ann", "##a", "sees", "Bob", ".", "maybe")


Probabilities = dict[str, tuple[float, float, float]]


def save_classifier(folder: Path, probabilities: Probabilities, labels: Sequence[str] = LABELS) -> str:
    """A tiny BERT that gives every piece of text exactly the probabilities it is told to."""
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    model = BertForTokenClassification(config)
    with torch.no_grad():
        for parameter in model.bert.parameters():
            parameter.zero_()
        # Layer norms of one-hot embeddings still tell the pieces apart, and a linear layer reads them.
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(1.0)
        model.bert.embeddings.word_embeddings.weight.copy_(torch.eye(8))
        hidden = model.eval()(input_ids=torch.arange(8)[None], output_hidden_states=True).hidden_states[-1][0]
        default = (1.0, 0.0, 0.0)
        wanted = torch.tensor([probabilities.get(piece, default) for piece in PIECES])[:, : len(labels)]
        model.classifier.bias.zero_()
        logits = torch.log(wanted.clamp(min=1e-6))
        # One-hot columns minus their mean: rank 7, so the logits are met up to a shift that softmax forgets.
        model.classifier.weight.copy_(torch.linalg.lstsq(hidden, logits - logits.mean(0)).solution.T)
        model.classifier.bias.copy_(logits.mean(0))
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_classifier(
        tmp_path_factory.mktemp("classifier"),
        probabilities={
            "Ann": (0.1, 0.8, 0.1),
            "##a": (0.9, 0.1, 0.0),
            "Bob": (0.4, 0.25, 0.35),
            "maybe": (0.85, 0.1, 0.05),
            "sees": (0.97, 0.02, 0.01),
        },
    )


def scores(scorer: Any, text: str) -> dict[str, tuple[str, float]]:
    return {text[t.start : t.end]: (t.label, t.score) for t in scorer.score([text])[0]}


def test_a_classifier_scores_one_minus_plain_text_by_whole_words(classifier: str) -> None:
    found = scores(TokenClassifier(classifier), "Anna sees Bob. maybe")
    assert found["Anna"][0] == found["Bob"][0] == "PER"
    assert found["Anna"][1] == pytest.approx(0.9, abs=1e-3)  # by its most sensitive piece
    assert found["Bob"][1] == pytest.approx(0.6, abs=1e-3)
    assert found["sees"][1] == pytest.approx(0.03, abs=1e-3)
    assert found["maybe"][1] == pytest.approx(0.15, abs=1e-3)


def test_texts_beside_one_and_windows_do_not_change_its_scores(classifier: str) -> None:
    scorer = TokenClassifier(classifier, batch_size=3)
    long = " ".join(["sees"] * 40 + ["Ann"] + ["sees"] * 40)  # far longer than the model reads
    texts = ["Ann sees.", long, "Bob", "maybe Ann"]
    assert scorer.score(texts) == [scorer.score([text])[0] for text in texts]
    assert len(scorer.score([long])[0]) == 81
    assert scores(scorer, long)["Ann"][1] == pytest.approx(0.9, abs=1e-3)


def test_the_paper_preset_masks_tags_and_makes_doubtful_plain_text_private(classifier: str) -> None:
    policy = chosen_policy("paper", tagger=classifier)
    assert (policy.redact, policy.conservative) == (PAPER_REDACT, PAPER_CONSERVATIVE)
    points = list(
        Screening(ScreenSettings(policy)).screen(documents("Ann sees.", "maybe sees.", "sees.", "Bob."))
    )
    assert [(point.text, point.private) for point in points] == [
        (f"{MASK} sees.", True),
        ("maybe sees.", True),  # plain text at 0.85, under 0.9
        ("sees.", False),
        ("Bob.", True),  # plain text wins at 0.4: pi leaves it, pi_c does not
    ]


@given(st.sampled_from(["O", "B-PER"]), st.floats(0, 1))
def test_the_papers_two_policies_are_two_thresholds_on_one_score(tag: str, score: float) -> None:
    sensitive = paper_score(tag, score)
    assert (sensitive >= PAPER_REDACT) == (tag != "O" and score >= 0.3)
    assert (sensitive >= PAPER_CONSERVATIVE) == (tag != "O" or score < 0.9)
    assert 0 <= sensitive <= 1


def test_kinds_lose_their_place_in_an_entity() -> None:
    assert [kind_of(tag) for tag in ("B-PER", "I-ORG", "S-WORK_OF_ART", "O", "PHONE", "X-Y")] == [
        "PER", "ORG", "WORK_OF_ART", "O", "PHONE", "X-Y",
    ]  # fmt: skip


def test_a_classifier_that_cannot_tell_plain_text_is_refused(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, probabilities={}, labels=("A", "B", "C"))
    with pytest.raises(ModelError, match="none of its 3 labels is 'O'"):
        TokenClassifier(folder)


def test_a_classifier_without_its_head_is_refused(tmp_path: Path, classifier: str) -> None:
    TokenClassifier(classifier)._model.bert.save_pretrained(tmp_path)
    TokenClassifier(classifier)._tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="weights are missing"):
        TokenClassifier(str(tmp_path))


def test_what_is_no_classifier_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a token classifier"):
        TokenClassifier(str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadFailed, match="is no folder here"):
        TokenClassifier("nobody/nothing-here")


class _Label:
    def __init__(self, value: str, score: float) -> None:
        self.value, self.score = value, score


class _Token:
    def __init__(self, match: re.Match[str]) -> None:
        self.text, self.start_position, self.end_position = match.group(), match.start(), match.end()
        self.label = _Label("O", 1.0)

    def get_label(self, tag_type: str) -> _Label:
        assert tag_type == "ner"
        return self.label


class _Sentence:
    def __init__(self, text: str) -> None:
        self.tokens = [_Token(match) for match in re.finditer(r"\w+|[^\w\s]", text)]

    def __iter__(self) -> Iterator[_Token]:
        return iter(self.tokens)


class _FlairTagger:
    """What is used of ``flair.models.SequenceTagger``."""

    tag_type = "ner"

    def predict(self, sentences: list[_Sentence], *, force_token_predictions: bool) -> None:
        assert force_token_predictions
        given = {"Ann": _Label("S-PERSON", 0.9), "Low": _Label("B-ORG", 0.2), "maybe": _Label("O", 0.8)}
        for sentence in sentences:
            for token in sentence:
                token.label = given.get(token.text, _Label("O", 0.99))


def test_a_flair_tagger_is_read_by_the_papers_rule() -> None:
    scorer = FlairScorer(_FlairTagger(), _Sentence, about="ner 1")
    found = scores(scorer, "Ann, Low maybe so")
    assert found["Ann"] == ("PERSON", 0.9)
    assert found["Low"] == ("ORG", 0.2)
    assert found["maybe"][1] == pytest.approx(0.2)
    assert found["so"][1] == 0.0
    policy = Policy((scorer,), PAPER_REDACT, PAPER_CONSERVATIVE)
    docs = documents("Ann so.", "Low so.", "maybe.", "so so.")
    points = list(Screening(ScreenSettings(policy)).screen(docs))
    assert [(p.text, p.private) for p in points] == [
        (f"{MASK} so.", True), ("Low so.", True), ("maybe.", True), ("so so.", False),
    ]  # fmt: skip
    plain = scores(FlairScorer(_FlairTagger(), _Sentence, about="ner 1", rule="probability"), "maybe")
    assert plain["maybe"][1] == pytest.approx(0.2)


def test_taggers_like_flairs_say_what_they_are() -> None:
    """A calibration of one counted for a screening by another: both were called "flair paper"."""
    one, two = (
        FlairScorer(_FlairTagger(), _Sentence, about=f"ner-english {hash}") for hash in ("5f2e", "91c0")
    )
    assert Policy((one,), 0.5).to_json() != Policy((two,), 0.5).to_json()
    assert one.fingerprint == FlairScorer(_FlairTagger(), _Sentence, about="ner-english 5f2e").fingerprint
    with pytest.raises(InputError, match="about"):
        FlairScorer(_FlairTagger(), _Sentence, about=" ")


class _Found:
    def __init__(self, start: int, end: int, entity_type: str, score: float) -> None:
        self.start, self.end, self.entity_type, self.score = start, end, entity_type, score


class _Engine:
    """What is used of ``presidio_analyzer.AnalyzerEngine``."""

    def analyze(self, text: str, *, language: str, entities: object, score_threshold: float) -> list[_Found]:
        assert (language, entities, score_threshold) == ("de", ["NAME"], 0.0)
        return [_Found(0, 3, "NAME", 0.6)]


def test_a_classifier_that_reads_or_labels_otherwise_has_another_fingerprint(
    tmp_path: Path, classifier: str
) -> None:
    """A calibration is compared with a screening by it: equal weights alone do not make one tagger."""
    files = ("config.json", "tokenizer.json")
    changes = (('"B-PER"', '"B-ORG"'), ('"maybe"', '"perhaps"'))
    before = TokenClassifier(classifier).fingerprint
    for file, (old, new) in zip(files, changes, strict=True):
        folder = tmp_path / file
        shutil.copytree(classifier, folder)
        assert TokenClassifier(str(folder)).fingerprint == before
        content = (folder / file).read_text()
        assert old in content
        (folder / file).write_text(content.replace(old, new))
        assert TokenClassifier(str(folder)).fingerprint != before


def test_any_presidio_engine_will_do() -> None:
    scorer = PresidioScorer(_Engine(), language="de", entities=["NAME"])
    assert scores(scorer, "Ann ruft") == {"Ann": ("NAME", 0.6)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_presidio_runs_on_a_blank_pipeline_without_any_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import spacy

    asked: list[object] = []

    def refuse(*where: object, **_: object) -> None:
        asked.append(where)
        raise OSError("there is no network")

    for name in ("socket.socket.connect", "socket.getaddrinfo", "spacy.cli.download"):
        monkeypatch.setattr(name, refuse)
    monkeypatch.setenv("TLDEXTRACT_CACHE", str(tmp_path / "cache"))
    text = "write to jane.doe@example.com or pay 4111111111111111"
    expected = {"EMAIL_ADDRESS": "jane.doe@example.com", "CREDIT_CARD": "4111111111111111"}
    found = {t.label: text[t.start : t.end] for t in PresidioScorer.with_model().score([text])[0]}
    assert found.items() >= expected.items()

    model = tmp_path / "model"
    spacy.blank("en").to_disk(model)
    configuration = tmp_path / "presidio.yaml"
    nlp = {"nlp_engine_name": "spacy", "models": [{"lang_code": "en", "model_name": str(model)}]}
    configuration.write_text(yaml.safe_dump({"supported_languages": ["en"], "nlp_configuration": nlp}))
    policy = tmp_path / "policy.yaml"
    policy.write_text("redact: 0.4\nscorers: [{kind: presidio, configuration: presidio.yaml}]\n")
    point = next(Screening(ScreenSettings(chosen_policy(str(policy)))).screen(documents(text)))
    assert point.text == f"write to {MASK} or pay {MASK}"
    assert asked == []


def _engine_of(name: str, model: object) -> dict[str, object]:
    models = [{"lang_code": "en", "model_name": model}]
    return {"nlp_configuration": {"nlp_engine_name": name, "models": models}}


@pytest.mark.parametrize(
    "configuration",
    [
        {"supported_languages": ["en"]},
        _engine_of("spacy", "en_core_web_lg"),
        _engine_of("transformers", {"spacy": "en_core_web_sm", "transformers": "x/y"}),
    ],
)
def test_no_spacy_model_is_taken_by_its_name(
    configuration: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an engine was built")

    monkeypatch.setattr("presidio_analyzer.AnalyzerEngineProvider.create_engine", refuse)
    path = tmp_path / "presidio.yaml"
    path.write_text(yaml.safe_dump(configuration))
    with pytest.raises((ModelError, RecipeError), match="by name"):
        PresidioScorer.from_configuration(path)
    with pytest.raises(ModelError, match="never fetched by name"):
        PresidioScorer.with_model(Path("en_core_web_sm"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_folder_named_like_a_package_does_not_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spaCy asks for an installed package of that name first, and only then looks for the folder."""
    import spacy

    package = tmp_path / "site" / "en_core_web_sm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the package was imported')\n")
    about = tmp_path / "site" / "en_core_web_sm-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: en_core_web_sm\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    spacy.blank("en").to_disk("en_core_web_sm")
    assert spacy.util.is_package("en_core_web_sm")
    configuration = tmp_path / "presidio.yaml"
    engine = _engine_of("spacy", "en_core_web_sm") | {"supported_languages": ["en"]}
    configuration.write_text(yaml.safe_dump(engine))
    for built in (
        PresidioScorer.with_model(Path("en_core_web_sm")),
        PresidioScorer.from_configuration(configuration),
    ):
        assert {found.label for found in built.score(["write to jane.doe@example.com"])[0]} >= {
            "EMAIL_ADDRESS"
        }


def test_presidio_is_known_by_what_is_in_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by their names: a calibration of another model or configuration must not pass for this one's."""
    monkeypatch.setattr("presidio_analyzer.AnalyzerEngineProvider.create_engine", lambda _: _Engine())
    monkeypatch.setattr("presidio_analyzer.nlp_engine.NlpEngineProvider.create_engine", lambda _: None)
    monkeypatch.setattr("presidio_analyzer.AnalyzerEngine", lambda **_: _Engine())
    places = []
    for name in ("one", "two"):
        model = tmp_path / name / "model"
        model.mkdir(parents=True)
        (model / "weights").write_text("1")
        engine = _engine_of("spacy", str(model)) | {"supported_languages": ["en"]}
        (tmp_path / name / "presidio.yaml").write_text(yaml.safe_dump(engine))
        places.append(tmp_path / name)

    def fingerprints(place: Path) -> tuple[str, str]:
        configured = PresidioScorer.from_configuration(place / "presidio.yaml")
        return configured.fingerprint, PresidioScorer.with_model(place / "model").fingerprint

    first, second = (fingerprints(place) for place in places)
    assert first[1] == second[1]  # the same model in two places
    assert first[0] != second[0]  # configurations of one name that say different things
    assert fingerprints(places[0]) == first
    (places[0] / "model" / "weights").write_text("2")
    assert not set(fingerprints(places[0])) & set(first)
    assert PresidioScorer.with_model().fingerprint not in (*first, *second)


def test_without_presidio_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'tacit\[redact\]'"):
        PresidioScorer.with_model()


def test_scores_are_finite(classifier: str) -> None:
    tokens = TokenClassifier(classifier).score(["", "zzz Ann"])
    assert tokens[0] == []
    assert all(math.isfinite(token.score) for token in tokens[1])
