"""Following the advice of refused losses, networks, collections and studies works."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from advised import Case, follow, refused_command, succeed  # noqa: E402
from commands import restored_registries  # noqa: E402

from calibrant import Predictions, calibrators, collect, losses, nn  # noqa: E402
from calibrant.lab import study  # noqa: E402
from calibrant.lab.data import Split, Splits  # noqa: E402
from calibrant.lab.study import Grid, Recipe, Study  # noqa: E402

torch.manual_seed(0)
LABELS = torch.randint(0, 3, (120,))
LOGITS = torch.randn(120, 3, dtype=torch.float64) + 2 * torch.eye(3)[LABELS]
P = Predictions(LOGITS, LABELS)
TEMPERATURE = calibrators.fit("Temperature", P)


def collection(code, batches, network=None, **options):
    """Return a collection that is refused, and follow the arguments of the advice."""
    network = network or torch.nn.Identity()
    return Case(
        code,
        lambda: collect(network, batches, **options),
        lambda t: collect(network, batches, **options | t.keywords()),
    )


def counted(name, **options):
    return getattr(losses, name)(LOGITS, LABELS, **options)


class Dictionary(torch.nn.Module):
    def forward(self, inputs):
        return {"loss": inputs.mean(), "scores": inputs}


BATCHES = [(LOGITS[:20], LABELS[:20])]
ONE_LOGIT = [(LOGITS[:20, :1], LABELS[:20] % 2)]
SEVERAL = [(LOGITS[:20], torch.eye(3)[LABELS[:20]])]
UNLABELED = [(LOGITS[:20], torch.tensor([255, *LABELS[1:20]]))]
EXAMPLES = [(torch.zeros(2), 1), (torch.ones(2), 0)]

CASES = [
    Case(
        "tensor_kind",
        lambda: TEMPERATURE(torch.zeros(4, 3, dtype=torch.int64)),
        lambda t: TEMPERATURE(t.evaluate("np.asarray", np=np, logits=[[0, 1, 2]])),
    ),
    Case(
        "label_sums",
        lambda: nn.Criterion("focal")(LOGITS, torch.ones(120, 3)),
        lambda t: nn.Criterion("focal", **t.keywords())(LOGITS, torch.ones(120, 3)),
    ),
    Case(
        "one_class",
        lambda: nn.Criterion("focal")(LOGITS[:, :1], LABELS % 2),
        lambda t: nn.Criterion("focal", **t.keywords())(LOGITS[:, :1], LABELS % 2),
    ),
    Case(
        "shape",
        lambda: nn.Criterion("focal", binary=True)(LOGITS[:, :2], LABELS % 2),
        lambda t: nn.Criterion("focal", **t.keywords())(LOGITS[:, :2], LABELS % 2),
    ),
    Case(
        "loss_shape",
        lambda: nn.Criterion(torch.nn.functional.cross_entropy)(LOGITS, LABELS),
        lambda t: nn.Criterion(torch.nn.CrossEntropyLoss(**t.keywords()))(LOGITS, LABELS),
    ),
    Case(
        "no_validation",
        lambda: losses.AdaFocal().after_epoch(0),
        lambda t: t.evaluate("after_epoch", after_epoch=losses.AdaFocal().after_epoch, epoch=0, val=P),
    ),
    Case(
        "adafocal_limits",
        lambda: losses.AdaFocal(lowest=-9),
        lambda t: t.evaluate("AdaFocal()", AdaFocal=losses.AdaFocal),
    ),
    Case(
        "no_counts",
        lambda: counted("logit_adjusted"),
        lambda t: [
            counted("logit_adjusted", **t.keywords(torch=torch, labels=LABELS)),
            counted("logit_adjusted", counts=t.evaluate("torch.bincount", torch=torch, labels=LABELS)),
        ],
    ),
    collection("no_logits", BATCHES, Dictionary()),
    collection("one_class", ONE_LOGIT),
    Case(
        "one_hot_labels",
        lambda: collect(torch.nn.Identity(), SEVERAL, names=["a", "b", "c"]),
        lambda t: collect(torch.nn.Identity(), SEVERAL, names=["a", "b", "c"], **t.keywords()).require_groups(),
    ),
    collection("label_range", UNLABELED),
    Case(
        "one_class",
        lambda: nn.CalibratedNetwork(torch.nn.Identity(), TEMPERATURE)(torch.zeros(4, 1)),
        lambda t: nn.CalibratedNetwork(torch.nn.Identity(), calibrators.Identity(), **t.keywords())(torch.zeros(4, 1)),
    ),
    Case(
        "batch",
        lambda: collect(torch.nn.Identity(), [(*BATCHES[0], 1)]),
        lambda t: collect(torch.nn.Identity(), [(*BATCHES[0], 1)], unpack=t.evaluate("lambda")),
    ),
    collection("logits", ONE_LOGIT, logits=True),
    Case(
        "not_split",
        lambda: Splits(EXAMPLES, EXAMPLES, EXAMPLES, ("a", "b")),
        lambda t: Splits(*[t.evaluate("Split.from_dataset", Split=Split, train=EXAMPLES)] * 3, ("a", "b")),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_advice_works(case):
    follow(case)


def test_advice_on_names_of_a_collection_works(tmp_path):
    options = {"names": ["a", "b", "c"], "to": tmp_path / "out.parquet"}
    follow(
        Case(
            "names",
            lambda: collect(torch.nn.Identity(), [(LOGITS, LABELS)], **options),
            lambda t: [
                collect(torch.nn.Identity(), [(LOGITS, LABELS)], **{name: options[name]})
                for name in options
                if name in t
            ],
        )
    )


TINY = {
    "datasets": ["blobs(train=60, val=40, test=50)"],
    "networks": ["mlp(features=2, hidden=())"],
    "losses": ["focal"],
    "recipe": Recipe(epochs=1, batch_size=20, milestones=()),
}


def test_advice_on_studies_works(tmp_path):
    for case in (
        Case("entry_twice", lambda: Grid(**TINY | {"losses": ["focal", "focal"]}), lambda t: Grid(**TINY)),
        Case(
            "no_paper",
            lambda: study.table(Study("tiny", [Grid(**TINY)]), "Table 2", out=tmp_path),
            lambda t: study.table(t.rstrip("."), "Table 2", out=tmp_path),
        ),
    ):
        follow(case)


def test_a_study_with_methods_of_its_own_runs_as_advised(tmp_path):
    (tmp_path / "own_loss.py").write_text(
        "from calibrant import losses\n\n@losses.register\ndef halved(logits, labels):\n"
        "    return losses.cross_entropy(logits, labels) / 2\n"
    )
    (tmp_path / "own.toml").write_text(
        'with = ["own_loss.py"]\ndatasets = ["blobs"]\nnetworks = ["mlp(features=2)"]\nlosses = ["halved"]\n'
    )
    with restored_registries():
        follow(
            Case(
                "code_not_allowed",
                lambda: study.status(tmp_path / "own.toml", out=tmp_path),
                lambda t: study.status(tmp_path / "own.toml", out=tmp_path, **t.keywords()),
            )
        )


@pytest.mark.slow
def test_figures_can_be_drawn_once_the_study_is_run(tmp_path):
    (tmp_path / "tiny.toml").write_text(
        'datasets = ["blobs(train=60, val=40)"]\nnetworks = ["mlp(features=2, hidden=())"]\nlosses = ["focal"]\n'
        "[recipe]\nepochs = 1\nbatch_size = 20\nmilestones = []\n"
    )
    advice = refused_command("no_finished_run", "figures", "tiny.toml", folder=tmp_path)
    succeed(*advice.split("`")[1].split()[1:], "tiny.toml", folder=tmp_path)
    succeed("figures", "tiny.toml", folder=tmp_path)
