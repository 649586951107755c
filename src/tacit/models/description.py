"""`tacit_model.json`: what a model folder says about itself beyond transformers' own files.

It records where the weights came from and their hashes, the token that starts every text, and whether the
vocabulary was built from private text, which no guarantee covers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.errors import ModelError, Tampered
from tacit.files import sha256_of, write_json
from tacit.models.safety import read_json_object, weight_files

FILE_NAME = "tacit_model.json"
PRIVATE_MARK = "tacit_holds_private_text"  # in config.json, which is copied where this file may not be
PRIVATE_VOCABULARY_NOTE = "The vocabulary was built from private text and is outside every guarantee."

Vocabulary = Literal["public", "private"]


class ModelDescription(BaseModel):
    """The content of ``tacit_model.json``."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    source: str
    licence: str | None
    parameters: int = Field(ge=0)
    start_token_id: int = Field(ge=0)
    vocabulary: Vocabulary
    holds_private_text: bool = False
    wheel_sha256: str | None = None
    weights_sha256: dict[str, str]


def weight_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every weight file of a model folder, by file name."""
    return {path.name: sha256_of(path) for path in weight_files(folder)}


def write_description(folder: Path, description: ModelDescription) -> None:
    """Write ``tacit_model.json`` into a model folder."""
    content = description.model_dump()
    if description.vocabulary == "private":
        content["note"] = PRIVATE_VOCABULARY_NOTE
    write_json(folder / FILE_NAME, content)


def read_description(folder: Path) -> ModelDescription | None:
    """The folder's description, or None for a model that tacit did not write."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        return ModelDescription.model_validate(read_json_object(path))
    except ValidationError as problem:
        where = ".".join(str(part) for part in problem.errors()[0]["loc"])
        raise ModelError(f"{path}: the field {where!r} cannot be used; create the model again.") from None


def verify_weights(folder: Path, hashes: dict[str, str]) -> None:
    """Refuse weights that are no longer those that the folder's description recorded."""
    description = read_description(folder)
    if description is not None and description.weights_sha256 != hashes:
        raise Tampered(
            f"{folder}: the weights do not match the hashes in {FILE_NAME}; remove the folder and pull or "
            "create the model again."
        )
