"""Everything that can go wrong, and whose fault it is.

    TacitError                      exit code 1
    ├── InputError                  exit code 2   what the caller gave cannot be used
    │   ├── RecipeError                           an unknown key, a wrong type, a value out of range
    │   ├── CorpusError                           a file, line, column or user that cannot be read
    │   ├── ModelError                            a directory that is not a model we can load
    │   ├── OutputExists                          the output is there already; nothing was touched
    │   ├── BudgetExceeded                        a charge that what is left does not pay for
    │   ├── LedgerRefused                         what would break the record; nothing was booked
    │   └── KeyReused                             an idempotency key that stands for another request
    ├── TrainingDiverged            exit code 1   a loss or gradient that is not finite; nothing was released
    ├── EnvironmentProblem          exit code 3   the machine lacks something
    │   ├── MissingExtra                          an optional dependency, with its install line
    │   ├── DownloadFailed                        the registry or hub did not deliver
    │   └── LedgerUnavailable                     the ledger cannot be written; nothing was released
    │       └── LedgerBusy                        another process holds it
    └── IntegrityError              exit code 4   refused on purpose
        ├── UnsafeFile                            pickled weights, remote code, an archive that escapes
        └── Tampered                              a hash, seal or saved state that does not match
            └── RolledBack                        a ledger older than its anchor: spent budget came back

A message is one sentence or two: the name, the value, the bound, and the remedy. It never carries
corpus text: an error message ends up in logs, and logs are not inside any guarantee.
"""

from __future__ import annotations

from typing import ClassVar


class TacitError(Exception):
    """Root of every error that tacit raises on purpose."""

    exit_code: ClassVar[int] = 1


class InputError(TacitError):
    """The caller gave something that cannot be used."""

    exit_code = 2


class RecipeError(InputError):
    """A recipe has an unknown key, a wrong type or a value out of range."""


class CorpusError(InputError):
    """A corpus cannot be read or used; says which file and line."""


class ModelError(InputError):
    """A directory or name that is not a model tacit can load."""


class OutputExists(InputError):
    """The output is there already; nothing was written."""


class BudgetExceeded(InputError):
    """A charge that what is left of a budget does not pay for; nothing was booked."""


class LedgerRefused(InputError):
    """The ledger refused what would break the record, such as a second answer for one step."""


class KeyReused(InputError):
    """An idempotency key that stands for another request already."""


class TrainingDiverged(TacitError):
    """A loss or a gradient is not finite."""


class EnvironmentProblem(TacitError):
    """The machine lacks something that the command needs."""

    exit_code = 3


class MissingExtra(EnvironmentProblem):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the '{extra}' extra: pip install 'tacit[{extra}]'.")


class DownloadFailed(EnvironmentProblem):
    """A registry or hub did not deliver."""


class LedgerUnavailable(EnvironmentProblem):
    """The ledger cannot be written: no private token may leave."""


class LedgerBusy(LedgerUnavailable):
    """Another process holds the ledger."""


class IntegrityError(TacitError):
    """Refused on purpose: going on would not be safe."""

    exit_code = 4


class UnsafeFile(IntegrityError):
    """A file that could run code or write outside its folder when opened."""


class Tampered(IntegrityError):
    """A hash or a saved state does not match what was recorded."""


class RolledBack(Tampered):
    """A ledger that is older than its anchor: what was spent since would be spent again."""


class PublicModelWarning(UserWarning):
    """A part of a partition holds nobody, so its member answers as the public model."""
