"""Act on probabilities: prediction sets, certified thresholds, costs, net benefit. It never changes a probability."""

from calibrant.decisions._certified_thresholds import CertifiedThreshold, certify_threshold
from calibrant.decisions._costs import CostTable, choose_actions, expected_costs
from calibrant.decisions._cross_sets import CrossSets
from calibrant.decisions._decision_loss import DecisionLoss, decision_loss
from calibrant.decisions._net_benefit import BenefitDifference, NetBenefit, net_benefit
from calibrant.decisions._scores import SetScore as SetScore
from calibrant.decisions._sets import Sets, SetTable
from calibrant.decisions._sets import save_atomically as save_atomically

__all__ = ["BenefitDifference", "CertifiedThreshold", "CostTable", "CrossSets", "DecisionLoss", "NetBenefit"]
__all__ += ["SetTable", "Sets"]
__all__ += ["certify_threshold", "choose_actions", "decision_loss", "expected_costs", "net_benefit"]
