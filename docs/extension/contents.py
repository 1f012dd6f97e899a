"""What stands on which page of the reference, and under which heading; tests hold it to the sources."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One page: the modules whose names it shows, and what is said before them."""

    title: str
    modules: tuple[str, ...]
    lead: str


PAGES = {
    "predictions": Page("Predictions", ("predictions",), "Everything starts here; see also [tables](../../tables.md)."),
    "collecting": Page("Collecting", ("collecting",), "From a network and its batches to predictions."),
    "assessment": Page(
        "Assessment", ("assessment",), "`calibrant.assess` and `calibrant.measure`, and what they return."
    ),
    "calibrators": Page(
        "Calibrators",
        ("calibrators",),
        "Each is fitted by `.fit(predictions)` and is then a frozen map from logits to better logits. "
        "[Which one?](../../howto/choose_a_calibrator.md) [Where does it run?](../../howto/deploy.md)",
    ),
    "metrics": Page(
        "Metrics",
        ("metrics", "metrics.curves", "metrics.tables", "metrics.ood"),
        "Conventions, and where others differ: [metrics](../../metrics.md). "
        "[Which one?](../../howto/choose_a_metric.md)",
    ),
    "losses": Page(
        "Losses", ("losses",), "In a training loop: `calibrant.nn.Criterion`, and [losses](../../losses.md)."
    ),
    "training": Page("Training", ("nn",), "A loss as torch trains with it, and a network with its calibrator."),
    "selection": Page("Selection", ("selection",), "Which epoch to keep."),
    "networks": Page("Networks", ("networks",), "By name in studies, as `resnet20` or `mlp(features=30)`."),
    "data": Page("Data", ("data", "data.corruptions"), "By name in studies, as `digits(train=100, val=300)`."),
    "study": Page("Studies", ("study",), "What stands in a study's file: [studies](../../studies.md)."),
    "theory": Page("Theory", ("theory",), "What it is for: [what focal loss does](../../theory.md)."),
    "plots": Page(
        "Plots",
        ("plots", "figures"),
        "Numbers in, ink out. All of them at work: [gallery](../../auto_gallery/index.rst).",
    ),
    "integrations": Page(
        "Integrations",
        tuple(
            f"integrations.{name}"
            for name in ("sklearn", "torchmetrics", "lightning", "transformers", "evaluate", "mlflow", "skore")
        ),
        "One thin module for each framework; none is imported unless asked for.",
    ),
    "types": Page(
        "Types and names",
        ("types", "catalog"),
        "The shapes of what people implement, the ranges of settings, the one error for bad input, and the registries "
        "by which methods are known by name.",
    ),
    "files": Page(
        "Files and pages",
        ("io", "html"),
        "What reads and writes. The formats: [file formats](../formats.md).",
    ),
}

HEADINGS = {  # of files whose docstring does not begin with a few words, in the order in which they are to be read
    "metrics._scores": "Scores",
    "metrics._binned": "Errors over bins",
    "metrics._cumulative": "Errors without bins, and tests",
    "metrics._smooth": "Smooth error",
    "metrics._corp": "A score taken apart",
    "metrics._ranking": "Ranking",
    "metrics._compare": "Two models",
    "metrics._two_sample": "Two ways to train, over seeds",
    "metrics._split": "Refinement and calibration",
    "metrics._summary": "More data than memory",
    "metrics._metric": "What a metric is",
    "metrics._about": "What to say of a number",
    "metrics._results": "Intervals, evidence, curves",
    "losses._proper": "Proper losses",
    "losses._focal": "The focal family",
    "losses._adaptive": "Losses that change between epochs",
    "losses._batch": "Penalties on the calibration of the batch",
    "losses._penalties": "Penalties on confidence",
    "losses._long_tail": "Long tails",
    "losses._mixup": "Mixed examples",
    "calibrators._auto": "No choosing",
    "calibrators._scaling": "Scaling",
    "calibrators._affine": "Affine maps",
    "calibrators._structured": "Structured scaling",
    "calibrators._ensemble": "A mixture with the raw prediction",
    "calibrators._monotone": "One increasing map",
    "calibrators._focal": "The focal map",
    "calibrators._binary": "Two classes",
    "calibrators._binning": "Binning",
    "calibrators._isotonic": "Isotonic",
    "calibrators._spline": "Splines",
    "calibrators._groups": "Groups",
    "calibrators._compose": "Calibrators of calibrators",
    "calibrators._apply": "Classes",
    "calibrators._fit": "Fitting by name",
    "calibrators._files": "Files",
    "assessment._measure": "Measuring",
    "assessment._assess": "Assessing",
    "assessment._table": "Rows",
    "assessment._judge": "Mistakes",
    "assessment._event": "What is judged",
    "assessment._candidates": "What is assessed",
    "assessment._apply": "Files",
    "theory._gradient": "The gradient",
    "theory._map": "The focal map",
    "theory._risk": "What focal loss asks for",
    "theory._temperature": "The nearest temperature",
    "plots._predictions": "Predictions",
    "plots._theory": "Theory",
    "html._page": "Pages",
    "html._diagrams": "Diagrams",
    "study.front": "Running",
    "study.results": "Results",
    "study.config": "What a study is",
    "study.models": "Models trained elsewhere",
    "study.recipe": "Recipes",
    "study.store": "Where runs rest",
    "study.progress": "Progress",
}
