"""The calibration card of language models: every number that an evaluation log supports, from one or more logs."""

from calibrant.language_models.cards._card import Card, ModelCard, card
from calibrant.language_models.cards._numbers import (
    CoverageRow,
    PolicyRow,
    Ranking,
    RankInterval,
    SubjectRow,
    UngradedAnswers,
)

__all__ = ["Card", "CoverageRow", "ModelCard", "PolicyRow", "RankInterval", "Ranking", "SubjectRow"]
__all__ += ["UngradedAnswers", "card"]
