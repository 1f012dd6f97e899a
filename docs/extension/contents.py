"""Pages and headings of the API reference. Tests compare them with the source code."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """A page: the modules whose names it lists, and its introduction."""

    title: str
    modules: tuple[str, ...]
    lead: str


PAGES = {
    "predictions": Page(
        "Predictions", ("predictions",), "The input of everything else. See also [tables](../../tables.md)."
    ),
    "events": Page("Events", ("events",), "Kinds of events that predictions forecast, and their texts in reports."),
    "collecting": Page("Collecting", ("collecting",), "From a network and its batches to predictions."),
    "assessment": Page("Assessment", ("assessment",), "`calibrant.assess` and `calibrant.measure`, and their results."),
    "planning": Page(
        "Planning",
        ("planning",),
        "`calibrant.sample_size`: [how many labels](../../howto/how_many_labels.md) an evaluation needs.",
    ),
    "monitoring": Page(
        "Monitoring",
        ("monitoring",),
        "`calibrant.check`: [a gate in continuous integration](../../howto/gate_in_ci.md). `calibrant.compare` and "
        "`calibrant.drift`: [compare, and notice drift](../../howto/compare_and_drift.md). `calibrant.Watch`: "
        "[watch calibration over time](../../howto/watch.md).",
    ),
    "subgroups": Page(
        "Subgroups",
        ("subgroups",),
        "[Find subgroups](../../howto/subgroups.md) whose probabilities are wrong, and correct them.",
    ),
    "decisions": Page(
        "Decisions",
        ("decisions",),
        "[Act on probabilities](../../howto/act.md): prediction sets, certified thresholds, actions and costs.",
    ),
    "deployment": Page(
        "Deployment",
        ("deployment",),
        "[Deploy](../../howto/deploy.md) what was fitted: without Calibrant, or under a contract.",
    ),
    "cards": Page(
        "Calibration cards",
        ("cards",),
        "The [calibration card](../../howto/evaluation_logs.md) of language models, from their evaluation logs.",
    ),
    "language_models": Page(
        "Language models",
        ("language_models",),
        "Logs of evaluations: [evaluation logs](../../howto/evaluation_logs.md).",
    ),
    "fusion": Page(
        "Fusion",
        ("fusion",),
        "[Several signals of confidence](../../howto/evaluation_logs.md#several-signals-of-confidence) become one.",
    ),
    "few_labels": Page(
        "Few labels",
        ("few_labels",),
        "The accuracy from [few labels](../../howto/few_labels.md) and many unlabeled rows, and which rows to label.",
    ),
    "tokens": Page(
        "Tokens",
        ("tokens",),
        "Calibration of [next-token predictions](../../howto/evaluation_logs.md#next-tokens).",
    ),
    "calibrators": Page(
        "Calibrators",
        ("calibrators",),
        "`.fit(predictions)` returns a frozen map from logits to better logits. "
        "[Choose a calibrator](../../howto/choose_a_calibrator.md), [deploy it](../../howto/deploy.md).",
    ),
    "metrics": Page(
        "Metrics",
        ("metrics", "metrics.curves", "metrics.tables", "metrics.ood"),
        "What they mean: [metrics](../../metrics.md), [conventions](../../metrics_conventions.md). "
        "[Choose a metric](../../howto/choose_a_metric.md).",
    ),
    "losses": Page(
        "Losses", ("losses",), "In a training loop: `calibrant.nn.Criterion`, and [losses](../../losses.md)."
    ),
    "training": Page("Training", ("nn",), "Losses for torch training loops, and networks with a calibrator."),
    "selection": Page("Selection", ("selection",), "Scores to select an epoch by."),
    "networks": Page("Networks", ("lab.networks",), "By name in studies, as `resnet20` or `mlp(features=30)`."),
    "data": Page("Data", ("lab.data", "lab.data.corruptions"), "By name in studies, as `digits(train=100, val=300)`."),
    "study": Page("Studies", ("lab.study",), "The study file: [studies](../../studies.md)."),
    "theory": Page("Theory", ("theory",), "Explanation: [what focal loss does](../../theory.md)."),
    "plots": Page(
        "Plots",
        ("plots", "lab.figures"),
        "Each function draws given numbers. Examples: [gallery](../../auto_gallery/index.rst).",
    ),
    "integrations": Page(
        "Integrations",
        tuple(
            f"integrations.{name}"
            for name in ("sklearn", "torchmetrics", "lightning", "transformers", "mlflow", "skore")
        ),
        "One module per framework. Modules are imported only on request.",
    ),
    "types": Page(
        "Types and names",
        ("types", "registry"),
        "Protocols for your own methods, ranges of settings, the error for invalid input, and registries of methods.",
    ),
    "files": Page(
        "Files and pages",
        ("io.reading", "io.tables", "io.formats", "io.files", "report"),
        "Readers and writers. See [file formats](../formats.md).",
    ),
}

HEADINGS = {  # headings of files, in reading order; other files use the first words of their docstring
    "metrics._scores": "Scores",
    "metrics._binned": "Binned errors",
    "metrics._cumulative": "Errors without bins, and tests",
    "metrics._smooth": "Smooth error",
    "metrics._corp": "Score decomposition",
    "metrics._ranking": "Ranking",
    "metrics._compare": "Comparing two models or training methods",
    "metrics._decomposition": "Refinement and calibration",
    "metrics._summary": "More data than memory",
    "metrics._metric": "Metric objects",
    "metrics._info": "Descriptions of metrics",
    "metrics._intervals": "Intervals, evidence, curves",
    "losses._proper": "Proper losses",
    "losses._focal": "The focal family",
    "losses._adaptive": "Losses that change between epochs",
    "losses._batch_penalties": "Penalties on the calibration of the batch",
    "losses._penalties": "Penalties on confidence",
    "losses._long_tail": "Long tails",
    "losses._mixup": "Mixed examples",
    "calibrators._auto": "Automatic selection",
    "calibrators._temperature": "Scaling",
    "calibrators._affine": "Affine maps",
    "calibrators._structured": "Structured scaling",
    "calibrators._ensemble": "Ensemble temperature scaling",
    "calibrators._monotone": "Monotone map",
    "calibrators._order_preserving": "Order-preserving map",
    "calibrators._focal": "The focal map",
    "calibrators._binary": "Two classes",
    "calibrators._binning": "Binning",
    "calibrators._isotonic": "Isotonic",
    "calibrators._spline": "Splines",
    "calibrators._groups": "Groups",
    "calibrators._compose": "Chains",
    "calibrators._apply": "Classes",
    "calibrators._fitting": "Fitting by name",
    "calibrators._files": "Files",
    "assessment._measure": "Measuring",
    "assessment._assess": "Assessing",
    "assessment._results": "Rows",
    "assessment._mistakes": "Mistakes",
    "assessment._candidates": "Candidates",
    "assessment._apply": "Files",
    "language_models._log": "Logs",
    "language_models._conventions": "Published conventions",
    "language_models._missing": "Missing confidences",
    "language_models._rewards": "Rewards",
    "cards._card": "Cards",
    "cards._numbers": "Numbers and ranks",
    "planning._sample_size": "Sample size",
    "planning._result": "Results",
    "planning._search": "Power curves",
    "monitoring._check": "Requirements",
    "monitoring._compare": "Comparisons",
    "monitoring._drift": "Drift",
    "monitoring._estimates": "Estimates without labels",
    "monitoring._label_shift": "Class shares",
    "monitoring._watch": "The watch",
    "monitoring._verdict": "Verdicts",
    "monitoring._reading": "Files",
    "monitoring._files": "Locks",
    "monitoring._intervals": "Confidence sequences",
    "subgroups._multicalibrated": "Multicalibration",
    "decisions._sets": "Prediction sets",
    "decisions._cross_sets": "Cross-conformal sets",
    "decisions._thresholds": "Certified thresholds",
    "decisions._costs": "Costs",
    "decisions._decision_loss": "Decision loss",
    "deployment._export": "Export",
    "deployment._contract": "Contracts",
    "theory._gradient": "The gradient",
    "theory._focal_map": "The focal map",
    "theory._risk": "Minimizer of focal loss",
    "theory._temperature": "The nearest temperature",
    "plots._predictions": "Predictions",
    "plots._decisions": "Decisions",
    "plots._planning": "Planning",
    "plots._monitoring": "Monitoring",
    "plots._theory": "Theory",
    "report._elements": "Pages",
    "report._figures": "Diagrams",
    "lab.study.api": "Running",
    "lab.study.results": "Results",
    "lab.study.config": "Study files",
    "lab.study.grids": "Grids, runs and models trained elsewhere",
    "lab.study.recipe": "Recipes",
    "lab.study.store": "Run store",
    "lab.study.progress": "Progress",
}
