"""Act on probabilities: prediction sets, certified thresholds, actions of least cost, and net benefit."""

from calibrant.decisions._costs import CostTable, NetBenefit, choose_actions, expected_costs, net_benefit
from calibrant.decisions._scores import SetScore as SetScore
from calibrant.decisions._sets import Sets, SetTable
from calibrant.decisions._thresholds import CertifiedThreshold, certify_threshold

__all__ = ["CertifiedThreshold", "CostTable", "NetBenefit", "SetTable", "Sets", "certify_threshold", "choose_actions"]
__all__ += ["expected_costs", "net_benefit"]
