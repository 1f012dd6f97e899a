"""
A fraud team
============

A team can look at 200 of 10,000 payments per day. A model scores each payment. Which payments should be looked at,
which may pass, and how does the team notice that fraud has changed? This tutorial counts in euros and cases. Its
payments are simulated, so that the truth is known.
"""

import tempfile
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from scipy.special import expit

from calibrant import Predictions, Watch, calibrators, check, decisions, metrics
from calibrant.calibrators.subgroups import MultiCalibrated
from calibrant.deployment import Contract
from calibrant.reports import plots

CHECK_COST, FRAUD_LOSS = 4.0, 250.0  # euros


def payments(n, seed, new_pattern=False):
    """Return predictions of a day, and the features of its payments."""
    rng = np.random.default_rng(seed)
    country = rng.choice(["DE", "FR", "PL", "other"], n, p=[0.5, 0.2, 0.2, 0.1])
    amount = np.exp(rng.normal(4, 1, n))
    z = rng.normal(-7.5, 2.2, n)  # what the model sees
    true_logit = z / 1.3 + 1.5 * ((country == "other") & (amount > 80))
    if new_pattern:
        true_logit = true_logit + 1.5 * (country == "FR")
    labels = (rng.random(n) < 1 / (1 + np.exp(-true_logit))).astype(int)
    p = Predictions.from_binary_logits(
        z, labels, class_names=("honest", "fraud"), groups=country
    )
    return p, {"country": country, "amount": amount}


fit, fit_features = payments(50_000, seed=0)
test, test_features = payments(50_000, seed=1)

# %%
# Probabilities that are true in every country
# --------------------------------------------
#
# Large payments from rare countries are worse than the model knows. A correction of subgroups finds them:

fitted = MultiCalibrated.fit(fit, fit_features)
print(fitted.evaluate(test, test_features))
p = fitted.apply(test, test_features)

# %%
# Which payments are worth a look?
# --------------------------------
#
# A check costs 4 euros, a missed fraud 250. The action of least expected cost is a check from a probability of 1.6 %
# on.

# Rows: honest, fraud; columns: pass, check
costs = [[0, CHECK_COST], [FRAUD_LOSS, CHECK_COST]]
for name, q in (("raw", test), ("calibrated in subgroups", p)):
    table = decisions.expected_costs(q, costs)
    euros = 10_000 * table.model.value
    print(
        f"{name}: {euros:,.0f} euros per 10,000 payments; "
        f"promised {10_000 * table.stated:,.0f}"
    )
best = decisions.expected_costs(p, costs)
print(f"checked: {100 * best.action_shares[1]:.1f} % of the payments")
saved = decisions.expected_costs(test, costs).model.value - best.model.value
assert saved > 0

# %%
# With 200 checks per 10,000 payments, take the 2 % with the highest probabilities:

score = expit(p.logits[:, 1] - p.logits[:, 0])
selected = score >= np.quantile(score, 0.98)
caught = int(p.labels[selected].sum())
print(
    f"in {int(selected.sum())} checks: {caught} of {int(p.labels.sum())} frauds; "
    f"expected {float(score[selected].sum()):.0f}"
)

# %%
# What may pass without any check?
# --------------------------------
#
# Payments pass at once if at most 3 in 1,000 of them are fraud, certified with probability 95 %. A contract puts this
# promise, and the calibrator that it was tested with, into one file. ``calibrant apply`` then adds the column
# ``act``.
#
# Fraud is rare, about 1.3 % of the payments, so that limits must be set beside this base rate. A model that says one in
# a million to every payment has an ECE of 1.3 % and would pass ``ece < 0.02``. One that always says the base rate has
# an ECE of 0 and an NLL of 0.068. Neither may pass.

platt = calibrators.fit("Platt", fit)
required = ["ece < 0.01", "nll < 0.06"]
base_rate = float(test.labels.mean())
for probability in 1e-6, base_rate:
    constant = Predictions.from_probs(np.full(len(test), probability), test.labels)
    result = check(constant, required)
    print(f"{probability:.6f} for every payment: {result.status}")
    assert result.status == "broken"
contract = Contract.create(
    platt, test, require=required, risk=0.003, delta=0.05, of="honest"
)
print(contract)
passing = contract.acts_on(payments(10_000, seed=2)[0])
print(f"pass at once: {100 * passing.mean():.1f} %")
path = Path(tempfile.mkdtemp()) / "payments.contract"
contract.save(path)

# %%
# When fraud changes
# ------------------
#
# The team watches the calibrated probabilities, in every country too. From day 3 on there is a new kind of fraud in
# France. The first alarm comes earlier: the plain calibrator of the contract does not know that payments from rare
# countries are worse. A model that is calibrated everywhere ever raises an alarm with probability at most 5 %.

contract = Contract.load(path)
watch = Watch()
for day in range(6):
    batch, _ = payments(3000, seed=10 + day, new_pattern=day >= 3)
    watch = watch.add(contract.calibrate(batch).with_event("fraud"), name=f"day {day}")
    print(f"day {day}: {watch.verdict.sentences[0]}")
assert watch.verdict.alarm

# %%
# In France, the last days hold more fraud than the probabilities say:

before, after = (payments(30_000, seed=9, new_pattern=new)[0] for new in (False, True))
figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.8))
for ax, (name, day) in zip(axes, (("before", before), ("after", after))):
    french = contract.calibrate(day).with_event("fraud").select_group("FR")
    plots.reliability_curve(metrics.curves.corp(french), ax=ax, title=f"France, {name}")
    ax.set(xlabel="probability of fraud", ylabel="frequency")
