"""The arithmetic of privacy loss and the statements made from it. NumPy and SciPy, never torch."""

from tacit.privacy.certificates import ExtractionCertificate, extraction_certificate
from tacit.privacy.confidentiality import (
    Indistinguishable,
    MissRate,
    calibrated_rates,
    each_secret,
    group_by_composition,
    random_secret_at_point,
    random_secret_delta,
    random_secret_epsilon,
)
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
from tacit.privacy.crt_certificate import Certificate, certify
from tacit.privacy.divergence import renyi_divergence, symmetric_renyi_divergence
from tacit.privacy.dpsgd import Adjacency, DpSgdProcess, PrivacyCurve, dpsgd_curve, rdp_at
from tacit.privacy.filter import RenyiFilter
from tacit.privacy.gaussian import AsymptoticMu, gaussian_dp_mu, shuffled_epsilon
from tacit.privacy.guarantee import Guarantee, Unit
from tacit.privacy.noise_calibration import calibrate_noise

__all__ = [
    "Adjacency",
    "AsymptoticMu",
    "Certificate",
    "DpSgdProcess",
    "ExtractionCertificate",
    "Guarantee",
    "Indistinguishable",
    "MissRate",
    "PrivacyCurve",
    "RandomStop",
    "RenyiBound",
    "RenyiFilter",
    "Unit",
    "calibrate_noise",
    "calibrated_rates",
    "certify",
    "dpsgd_curve",
    "each_secret",
    "extraction_certificate",
    "gaussian_dp_mu",
    "group_by_composition",
    "part_to_user",
    "pure_group",
    "pure_part_to_user",
    "random_secret_at_point",
    "random_secret_delta",
    "random_secret_epsilon",
    "random_stopping",
    "rdp_at",
    "rdp_group",
    "rdp_to_dp",
    "renyi_divergence",
    "shuffled_epsilon",
    "symmetric_renyi_divergence",
    "zcdp_group",
]
