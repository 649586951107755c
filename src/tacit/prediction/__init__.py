"""Ensemble, mechanism and budget, coupled once into private answers."""

from tacit.prediction.answering import Answering, Budget, OperatorView
from tacit.prediction.drawing import Drawing, Drawn
from tacit.prediction.predictor import Prediction, PrivatePredictor

__all__ = ["Answering", "Budget", "Drawing", "Drawn", "OperatorView", "Prediction", "PrivatePredictor"]
