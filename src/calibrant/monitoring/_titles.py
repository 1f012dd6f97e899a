"""Titles of the scores and distributions that comparisons test."""

TITLES = {
    "accuracy": "accuracy",
    "signed_gap": "confidence − accuracy",
    "event_brier": "Brier score of the event",
    "nll": "negative log-likelihood",
    "confidence": "mean confidence",
    "ece": "ECE",
    "confidences": "distribution of confidence",
    "predicted classes": "predicted classes",
    "labels": "labels",
}
PERCENT_SCORES = ("accuracy", "signed_gap", "confidence", "ece")
