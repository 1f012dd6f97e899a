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
    "networks": Page("Networks", ("lab.networks",), "By name in studies, as `resnet20` or `mlp(features=30)`."),
    "data": Page("Data", ("lab.data", "lab.data.corruptions"), "By name in studies, as `digits(train=100, val=300)`."),
    "study": Page("Studies", ("lab.study",), "What stands in a study's file: [studies](../../studies.md)."),
    "theory": Page("Theory", ("theory",), "What it is for: [what focal loss does](../../theory.md)."),
    "plots": Page(
        "Plots",
        ("plots", "lab.figures"),
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
        ("types", "registry"),
        "The shapes of what people implement, the ranges of settings, the one error for bad input, and the registries "
        "by which methods are known by name.",
    ),
    "files": Page(
        "Files and pages",
        ("io", "report"),
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
    "metrics._decomposition": "Refinement and calibration",
    "metrics._summary": "More data than memory",
    "metrics._metric": "What a metric is",
    "metrics._info": "What to say of a number",
    "metrics._intervals": "Intervals, evidence, curves",
    "losses._proper": "Proper losses",
    "losses._focal": "The focal family",
    "losses._adaptive": "Losses that change between epochs",
    "losses._batch_penalties": "Penalties on the calibration of the batch",
    "losses._penalties": "Penalties on confidence",
    "losses._long_tail": "Long tails",
    "losses._mixup": "Mixed examples",
    "calibrators._auto": "No choosing",
    "calibrators._temperature": "Scaling",
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
    "calibrators._fitting": "Fitting by name",
    "calibrators._files": "Files",
    "assessment._measure": "Measuring",
    "assessment._assess": "Assessing",
    "assessment._results": "Rows",
    "assessment._evaluation": "Mistakes",
    "assessment._events": "What is judged",
    "assessment._candidates": "What is assessed",
    "assessment._apply": "Files",
    "theory._gradient": "The gradient",
    "theory._focal_map": "The focal map",
    "theory._risk": "What focal loss asks for",
    "theory._temperature": "The nearest temperature",
    "plots._predictions": "Predictions",
    "plots._theory": "Theory",
    "report._elements": "Pages",
    "report._diagrams": "Diagrams",
    "lab.study.api": "Running",
    "lab.study.results": "Results",
    "lab.study.config": "What a study is",
    "lab.study.external_models": "Models trained elsewhere",
    "lab.study.recipe": "Recipes",
    "lab.study.store": "Where runs rest",
    "lab.study.progress": "Progress",
}
