"""
Is my language model calibrated?
================================

A model has answered the questions of an evaluation, and has said how sure it is of each answer. From the log of the
evaluation to a decision: is 90 % true, what do the published numbers say, and when should the model rather say nothing?
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import pyplot

from calibrant import EvaluationLog, assess, language_models, metrics
from calibrant.language_models.cards import card
from calibrant.reports import plots

# %%
# The log
# -------
#
# ``EvaluationLog.read`` reads logs of lm-evaluation-harness, Inspect and HELM, and JSON lines with one answer each.
# Here a simulated model answers 2,000 questions. It says 90 % where it is right in seven of ten cases, and sometimes
# says nothing about its confidence.

rng = np.random.default_rng(0)
confidence = rng.choice(
    [0.5, 0.7, 0.8, 0.9, 0.95, 1.0], 2000, p=[0.05, 0.1, 0.2, 0.35, 0.2, 0.1]
)
subject = rng.choice(["law", "physics", "history"], 2000)
accuracy = 0.25 + 0.5 * confidence - 0.1 * (subject == "law")
answers = [
    {
        "question_id": i,
        "subject": str(s),
        "confidence": f"{c:.0%}",
        "correct": int(rng.random() < a),
    }
    for i, (s, c, a) in enumerate(zip(subject, confidence, accuracy, strict=True))
]
for i in range(0, 2000, 17):
    answers[i]["confidence"] = None
folder = Path(tempfile.mkdtemp())
(folder / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
log = EvaluationLog.read(folder / "answers.jsonl")
print(*log.notes, sep="\n")

# %%
# The card
# --------
#
# One page with all numbers. On the command line: ``calibrant card answers.jsonl --html card.html``.

result = card({"my model": log})
print(result)
result.save(folder / "card.html")

# %%
# The model is overconfident, in every subject and most in law. The published conventions say so too, but they are no
# single number: they depend on the order of answers with equal confidences, and on what a missing confidence counts as.

for name, bounds in language_models.missing_confidence_bounds(log).items():
    print(f"{name:15} {bounds.low:.3f} to {bounds.high:.3f}")

# %%
# The decision
# ------------
#
# If a wrong answer costs three times what a right one gains, the model should answer from a confidence of 75 % on. Its
# own confidences would cost more than silence: the score is below 0.

model = result.models[0]
for row in model.policies:
    print(
        f"t = {row.target}: answers {row.answered:.0%}, "
        f"score {row.score.value:+.3f}, always {row.always:+.3f}"
    )

# %%
# A calibrator repairs that. It is fitted on one half of the questions and judged on the other:

p = log.predictions
half = np.arange(len(p)) % 2 == 0
repaired = assess(p[half], p[~half])
calibrated = p[~half].apply(repaired.best)
print("calibrator:", repaired.chosen_label)
print(
    "gap before and after:",
    metrics.signed_gap.interval(p[~half]),
    metrics.signed_gap.interval(calibrated),
)

# %%

figure, axes = pyplot.subplots(1, 2, figsize=(7.6, 3.8))
plots.reliability(p[~half], ax=axes[0], title="as stated")
plots.reliability(calibrated, ax=axes[1], title=f"after {repaired.chosen_label}")

# %%
# With the repaired confidences, hardly any answer reaches 75 %: at this price the model should say nothing, and now it
# knows. At equal costs, t = 0.5, it answers nearly everything.

for target in (0.5, 0.75):
    is_answered = calibrated.events.confidence >= target
    right = calibrated.events.outcome
    gains = right - (1 - right) * target / (1 - target)
    score, share = (float(x.mean()) for x in (is_answered * gains, is_answered))
    print(f"t = {target}: answers {share:.0%}, score {score:+.3f}")

# %%
# A new model
# -----------
#
# Of the next model, 50 of 2,000 answers are graded. The card uses the confidences of the rest for the accuracy of all.
# Without any grade, nothing reveals the accuracy, and the card says so. Other models make a calibrator from few labels:
# see :doc:`/howto/few_labels`.

graded = set(rng.permutation(2000)[:50].tolist())
partly = [
    answer | ({} if i in graded else {"correct": None})
    for i, answer in enumerate(answers)
]
(folder / "partly.jsonl").write_text("\n".join(map(json.dumps, partly)))
print(card(EvaluationLog.read(folder / "partly.jsonl")).ungraded[0].sentence)
