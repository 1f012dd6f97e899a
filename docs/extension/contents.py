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
        "Predictions",
        ("predictions",),
        "The input of everything else, from arrays, [tables and files](../../tables.md).",
    ),
    "assessment": Page(
        "Measure and assess",
        ("assessment",),
        "`calibrant.measure`, `calibrant.assess` and `calibrant.validate`, and their results.",
    ),
    "metrics": Page(
        "Metrics",
        ("metrics",),
        "What they mean: [metrics](../../metrics.md), [conventions](../../metrics_conventions.md). "
        "[Choose a metric](../../howto/choose_a_metric.md).",
    ),
    "curves": Page(
        "Curves, tables, detection",
        ("metrics.curves", "metrics.tables", "metrics.ood"),
        "Results of metrics that are more than a number.",
    ),
    "calibrators": Page(
        "Calibrators",
        ("calibrators",),
        "`.fit(predictions)` returns a frozen map from logits to better logits. "
        "[Choose a calibrator](../../howto/choose_a_calibrator.md), [deploy it](../../howto/deploy.md).",
    ),
    "subgroups": Page(
        "Subgroups",
        ("calibrators.subgroups",),
        "[Find subgroups](../../howto/subgroups.md) whose probabilities are wrong, and correct them.",
    ),
    "decisions": Page(
        "Decisions",
        ("decisions",),
        "[Act on probabilities](../../howto/act.md): prediction sets, certified thresholds, actions and costs.",
    ),
    "monitoring": Page(
        "Monitoring",
        ("monitoring",),
        "`calibrant.check`: [a gate in continuous integration](../../howto/gate_in_ci.md). `calibrant.compare` and "
        "`calibrant.drift`: [compare, and notice drift](../../howto/compare_and_drift.md). `calibrant.Watch`: "
        "[watch calibration over time](../../howto/watch.md).",
    ),
    "deployment": Page(
        "Deployment",
        ("deployment",),
        "[Deploy](../../howto/deploy.md) what was fitted: without Calibrant, or under a contract.",
    ),
    "planning": Page(
        "Planning",
        ("planning", "planning.few_labels"),
        "[How many labels](../../howto/how_many_labels.md) an evaluation needs, and the accuracy from "
        "[few labels](../../howto/few_labels.md).",
    ),
    "language_models": Page(
        "Language models",
        ("language_models", "language_models.cards", "language_models.fusion"),
        "[Evaluation logs](../../howto/evaluation_logs.md), the calibration card, and several signals of confidence "
        "[as one](../../howto/evaluation_logs.md#several-signals-of-confidence).",
    ),
    "losses": Page(
        "Losses", ("losses",), "In a training loop: `calibrant.nn.Criterion`, and [losses](../../losses.md)."
    ),
    "nn": Page(
        "Training in PyTorch",
        ("nn", "nn.collecting", "nn.selection", "nn.tokens"),
        "[In your training loop](../../howto/training_loop.md): criteria, calibrated networks, predictions of a "
        "network, the choice of an epoch, and [next tokens](../../howto/evaluation_logs.md#next-tokens).",
    ),
    "study": Page("Studies", ("lab.study",), "The study file: [studies](../../studies.md)."),
    "networks": Page("Networks", ("lab.networks",), "By name in studies, as `resnet20` or `mlp(features=30)`."),
    "data": Page("Data", ("lab.data", "lab.data.corruptions"), "By name in studies, as `digits(train=100, val=300)`."),
    "theory": Page("Theory", ("theory",), "Explanation: [what focal loss does](../../theory.md)."),
    "plots": Page(
        "Plots",
        ("reports.plots", "lab.figures"),
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
        ("types", "registry", "predictions.events"),
        "Protocols for your own methods, ranges of settings, the error for invalid input, registries of methods, and "
        "kinds of events.",
    ),
    "files": Page(
        "Files and pages",
        ("io.predictions", "io.tables", "io.formats", "io.files", "reports", "reports.document"),
        "Readers and writers, and documents, which results consist of. See [file formats](../formats.md).",
    ),
}

HEADINGS = {  # headings of the names that a file defines, in reading order
    "predictions._predictions": "The object",
    "predictions.events": "Events",
    "predictions._apply": "Calibrators applied to logits",
    "predictions.validation.columns": "Columns",
    "metrics._scores": "Scores",
    "metrics._binned": "Binned errors",
    "metrics._cumulative": "Errors without bins, and tests",
    "metrics._omnibus": "The test behind the verdict",
    "metrics._smooth": "Smooth error",
    "metrics._corp": "Score decomposition",
    "metrics._ranking": "Ranking",
    "metrics._risk": "Risks",
    "metrics._flexible": "Flexible curve",
    "metrics._compare": "Comparing two models or training methods",
    "metrics._differences": "Differences",
    "metrics._decomposition": "Refinement and calibration",
    "metrics._summary": "More data than memory",
    "metrics._metric": "Metric objects",
    "metrics._info": "Descriptions of metrics",
    "metrics._intervals": "Intervals, evidence, curves",
    "metrics._class_sums": "Tables of classes",
    "_core.kernels.bins": "Statistics of events",
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
    "calibrators._prior_shift": "New base rates",
    "calibrators._spline": "Splines",
    "calibrators._groups": "Groups",
    "calibrators._compose": "Chains",
    "calibrators._capabilities": "Classes",
    "calibrators.fields": "Learned fields",
    "calibrators._fitting": "Fitting by name",
    "calibrators._files": "Files",
    "calibrators.subgroups._multicalibrated": "Multicalibration",
    "assessment._measure": "Measuring",
    "assessment._assess": "Assessing",
    "assessment._results": "Rows",
    "assessment._validate": "Validating an estimator",
    "assessment._validation": "Results of a validation",
    "assessment._mistakes": "Mistakes",
    "assessment._candidates": "Candidates",
    "assessment._apply_to_file": "Files",
    "assessment._serialize": "Sources",
    "language_models._log": "Logs",
    "language_models._conventions": "Published conventions",
    "language_models._missing": "Missing confidences",
    "language_models._rewards": "Rewards",
    "io.logs.confidences": "Confidences in text",
    "io.logs.tokens": "Probabilities of tokens",
    "io.logs.rows": "Rows of logs",
    "language_models.cards._card": "Cards",
    "language_models.cards._numbers": "Numbers and ranks",
    "planning._sample_size": "Sample size",
    "planning._result": "Results",
    "planning._search": "Power curves",
    "monitoring._check": "Requirements",
    "monitoring._compare": "Comparisons",
    "monitoring._drift": "Drift",
    "monitoring._estimates": "Estimates without labels",
    "monitoring._watch": "The watch",
    "monitoring._verdict": "Verdicts",
    "monitoring._reading": "Files",
    "monitoring._files": "Locks",
    "monitoring._intervals": "Confidence sequences",
    "decisions._sets": "Prediction sets",
    "decisions._cross_sets": "Cross-conformal sets",
    "decisions._certified_thresholds": "Certified thresholds",
    "decisions._costs": "Costs",
    "decisions._net_benefit": "Net benefit",
    "decisions._decision_loss": "Decision loss",
    "deployment._export": "Export",
    "deployment._contract": "Contracts",
    "theory._gradient": "The gradient",
    "theory._focal_map": "The focal map",
    "theory._risk": "Minimizer of focal loss",
    "theory._temperature": "The nearest temperature",
    "nn._criterion": "Criteria",
    "nn._calibrated_network": "Networks with their calibrator",
    "nn._linear_loss": "Large vocabularies",
    "reports.plots._predictions": "Predictions",
    "reports.plots._decisions": "Decisions",
    "reports.plots._planning": "Planning",
    "reports.plots._monitoring": "Monitoring",
    "reports.plots._theory": "Theory",
    "reports.result": "Results",
    "_core.errors": "Errors",
    "_core.arguments": "Ranges of arguments",
    "_core.registry._registry": "Registries",
    "_core.registry._settings": "Settings",
    "_core.registry._sources": "Files with your own methods",
    "_core.registry._code_digest": "Code of methods",
    "lab.networks.classic": "Small networks",
    "lab.networks.resnet": "Residual networks",
    "lab.networks.densenet": "Densely connected networks",
    "lab.networks.text_cnn": "Convolutions over text",
    "lab.networks.tree_lstm": "Trees of words",
    "lab.networks.bert": "BERT",
    "lab.data.without_download": "Without a download",
    "lab.data.cifar": "CIFAR",
    "lab.data.svhn": "SVHN",
    "lab.data.imagenet": "ImageNet",
    "lab.data.newsgroups": "Newsgroups",
    "lab.data.sst": "Sentiment of sentences",
    "lab.data._splits": "Splits",
    "lab.study.api": "Running",
    "lab.study.results": "Results",
    "lab.study.config": "Study files",
    "lab.study.grids": "Grids, runs and models trained elsewhere",
    "lab.study.recipe": "Recipes",
    "lab.study.store": "Run store",
    "lab.study.progress": "Progress",
    "lab.study.paper_tables": "Tables of papers",
}
