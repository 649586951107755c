"""The perplexity-leakage frontier of a method: one recipe, one key, several values, a Run of each.

A method that leaks less because it learned less has shown nothing, so that methods are compared at equal
perplexity, between Runs with more and with less protection. Here these Runs are made: trained as `tacit
train` trains, audited as `tacit audit` audits, all alike, and kept in one folder.

    values.py     which recipes: the key, its values, a Run's name for each
    record.py     FOLDER/tune.json: what is pinned, and how far each Run is
    tracing.py    trains and audits what is missing, however often it was interrupted
    frontier.py   what came out: a row for each value, and what the method leaks at one perplexity
    folders.py    a folder of Runs where Runs are expected
"""

from tacit.tuning.folders import distinct_names, runs_in, varied_in
from tacit.tuning.frontier import Frontier
from tacit.tuning.record import FILE, PAGE, TuneRecord
from tacit.tuning.tracing import PlannedRun, Tuning, trace_frontier
from tacit.tuning.values import Point, Sweep, sweep_of

__all__ = [
    "FILE",
    "PAGE",
    "Frontier",
    "PlannedRun",
    "Point",
    "Sweep",
    "TuneRecord",
    "Tuning",
    "distinct_names",
    "runs_in",
    "sweep_of",
    "trace_frontier",
    "varied_in",
]
