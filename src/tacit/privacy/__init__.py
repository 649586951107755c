"""The arithmetic of privacy loss and the statements made from it. NumPy and SciPy, never torch."""

from tacit.privacy.certificates import ExtractionCertificate, extraction_certificate
from tacit.privacy.conversions import (
    RandomStop,
    RenyiBound,
    part_to_user,
    pure_group,
    pure_part_to_user,
    random_stopping,
    rdp_group,
    rdp_to_dp,
    zcdp_group,
)
from tacit.privacy.divergence import renyi_divergence, symmetric_renyi_divergence
from tacit.privacy.filter import RenyiFilter
from tacit.privacy.guarantee import Guarantee, Unit

__all__ = [
    "ExtractionCertificate",
    "Guarantee",
    "RandomStop",
    "RenyiBound",
    "RenyiFilter",
    "Unit",
    "extraction_certificate",
    "part_to_user",
    "pure_group",
    "pure_part_to_user",
    "random_stopping",
    "rdp_group",
    "rdp_to_dp",
    "renyi_divergence",
    "symmetric_renyi_divergence",
    "zcdp_group",
]
