"""Microsoft Presidio as a scorer: any engine that the user has, or one that tacit builds without a download.

No spaCy model is ever fetched or imported by its name: the package index has hostile ones. A model is a
folder that the user points at, and is handed on by its absolute path: spaCy takes ``en_core_web_sm`` for an
installed package first, even where a folder of that name is there. Without a model, spaCy's blank pipeline is
used, with which Presidio's patterns work and its recognition of names does not. Nothing is fetched for
checking e-mail addresses either.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from tacit.corpus.screening.scores import ScoredToken
from tacit.errors import MissingExtra, ModelError, RecipeError
from tacit.files import sha256_of
from tacit.recipes import read_mapping

_FEATURE = "The Presidio scorer"


class PresidioScorer:
    """A Presidio ``AnalyzerEngine`` (or anything with its ``analyze``); the scores are Presidio's own.

    ``about`` tells engines apart: a calibration is taken for a screening's if what they say of their policies
    is the same. Of engines that are built here it is a hash of their files, not where these lie.
    """

    contextual = True

    def __init__(
        self, engine: Any, *, language: str = "en", entities: Sequence[str] | None = None, about: str = ""
    ) -> None:
        self.name = "presidio"
        self.fingerprint = f"presidio {about} {language} {'all' if entities is None else ' '.join(entities)}"
        self._engine = engine
        self._language = language
        self._entities = None if entities is None else list(entities)

    @classmethod
    def with_model(
        cls, model: Path | None = None, *, language: str = "en", entities: Sequence[str] | None = None
    ) -> PresidioScorer:
        """Presidio's default recognisers over the spaCy model in a folder, or over a blank pipeline."""
        _require_presidio()
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import NlpEngineProvider

        if model is not None and not model.is_dir():
            raise ModelError(
                f"{model}: is no folder with a spaCy model; models are never fetched by name, give a folder."
            )
        about = f"blank {_versions()}" if model is None else f"model {_content([model])} {_versions()}"
        with tempfile.TemporaryDirectory() as folder:
            place = _blank(language, Path(folder) / "blank") if model is None else model
            configuration = {
                "nlp_engine_name": "spacy",
                "models": [{"lang_code": language, "model_name": str(place.resolve())}],
            }
            with _quiet():
                engine = NlpEngineProvider(nlp_configuration=configuration).create_engine()
                analyzer = AnalyzerEngine(nlp_engine=engine, supported_languages=[language])
        _stay_offline()
        return cls(analyzer, language=language, entities=entities, about=about)

    @classmethod
    def from_configuration(
        cls, path: Path, *, language: str = "en", entities: Sequence[str] | None = None
    ) -> PresidioScorer:
        """The engine that an analyzer configuration of Presidio's describes; its models must be folders."""
        _require_presidio()
        from presidio_analyzer import AnalyzerEngineProvider

        content = read_mapping(path, "Presidio configuration", "'nlp_configuration:'")
        models = _with_absolute_models(path, content)
        about = f"configuration {_content([path, *models])} {_versions()}"
        try:
            with _quiet(), tempfile.TemporaryDirectory() as folder:
                checked = Path(folder) / path.name
                checked.write_text(yaml.safe_dump(content), encoding="utf-8")
                engine = AnalyzerEngineProvider(analyzer_engine_conf_file=checked).create_engine()
        except (ValueError, TypeError, KeyError, OSError, ImportError) as problem:
            raise RecipeError(
                f"{path}: Presidio cannot build an engine from it ({type(problem).__name__}); correct it."
            ) from None
        _stay_offline()
        return cls(engine, language=language, entities=entities, about=about)

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """What Presidio finds, with its scores."""
        return [
            [
                ScoredToken(found.start, found.end, found.entity_type, min(max(float(found.score), 0.0), 1.0))
                for found in self._engine.analyze(
                    text, language=self._language, entities=self._entities, score_threshold=0.0
                )
                if found.start < found.end
            ]
            for text in texts
        ]


def _require_presidio() -> None:
    if importlib.util.find_spec("presidio_analyzer") is None:
        raise MissingExtra(_FEATURE, "redact")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Presidio tells of every recogniser that another language has."""
    logger = logging.getLogger("presidio-analyzer")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _blank(language: str, folder: Path) -> Path:
    import spacy

    try:
        spacy.blank(language).to_disk(folder)
    except ImportError:
        raise RecipeError(f"spaCy knows no language '{language}'; use its code, e.g. en.") from None
    return folder


def _content(places: Sequence[Path]) -> str:
    """A hash of files, and of all files of folders, by their names there."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file():
                name = path.relative_to(place).as_posix()
                digest.update(f"{name}\0{sha256_of(path)}\0".encode())
    return digest.hexdigest()[:16]


def _versions() -> str:
    """Of those whose code decides what is found."""
    return " ".join(f"{name} {version(name)}" for name in ("presidio-analyzer", "spacy"))


def _with_absolute_models(path: Path, configuration: Mapping[str, Any]) -> list[Path]:
    """The folders of its models, named there by their absolute paths; one named otherwise is refused."""
    nlp = configuration.get("nlp_configuration")
    models = nlp.get("models") if isinstance(nlp, Mapping) else None
    if not isinstance(models, list) or not models:
        raise RecipeError(
            f"{path}: has no nlp_configuration with models, and Presidio would fetch one by name; name one."
        )
    folders = []
    for model in models:
        if not isinstance(model, dict):
            raise _by_name(path, model)
        several = model.get("model_name")
        holder, keys = (several, list(several)) if isinstance(several, dict) else (model, ["model_name"])
        for key in keys:
            name = holder.get(key)
            if not isinstance(name, str) or not Path(name).is_dir():
                raise _by_name(path, name)
            folders.append(Path(name).resolve())
            holder[key] = str(folders[-1])
    return folders


def _by_name(path: Path, name: object) -> ModelError:
    return ModelError(
        f"{path}: the model '{name}' is no folder; models are never fetched or imported by name, give the "
        "folder of one."
    )


def _stay_offline() -> None:
    """Check e-mail addresses against the suffixes that tldextract carries; by default it fetches a list."""
    import tldextract.tldextract as suffixes

    suffixes.TLD_EXTRACTOR = suffixes.TLDExtract(cache_dir=None, suffix_list_urls=())
