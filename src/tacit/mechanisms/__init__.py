"""Distributions in, one distribution and its charges out. Pure: no files, no clock, no ledger.

`SubMix`, `Certified`, `Individual` and the baselines share one method, ``mix``, and one result, `Mixture`.
The set is closed on purpose: a guarantee hangs on each of them.
"""

from tacit.mechanisms.baselines import GNMax, NonPrivate, Public, SubsampleAggregate
from tacit.mechanisms.certified import Certified, Individual
from tacit.mechanisms.decoding import DecodedPmfs, Decoding, softmax_pmfs
from tacit.mechanisms.mixture import Mixture
from tacit.mechanisms.sampling import sample
from tacit.mechanisms.stopping import RandomStopping
from tacit.mechanisms.submix import SubMix

__all__ = [
    "Certified",
    "DecodedPmfs",
    "Decoding",
    "GNMax",
    "Individual",
    "Mixture",
    "NonPrivate",
    "Public",
    "RandomStopping",
    "SubMix",
    "SubsampleAggregate",
    "sample",
    "softmax_pmfs",
]
