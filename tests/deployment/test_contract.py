"""Contracts: created where everything holds, the same in every command, and refused once they were changed."""

import shutil
from dataclasses import fields, replace

import numpy as np
import polars
import pytest
from commands import run
from drawn import drawn_labels
from refusals import code_of, refused
from scipy.special import softmax

from calibrant import Predictions, Watch, calibrators
from calibrant.assessment import apply_to_file
from calibrant.decisions import Sets, certify_threshold
from calibrant.deployment import Contract
from calibrant.monitoring import check

NAMES = ("cat", "dog", "owl")
REQUIRE = ["ece < 0.06", "accuracy > 60%"]


def draw(n, seed, scale=2.0, names=NAMES):
    """Draw labels from the softmax of normal logits, which are then multiplied by `scale`."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=(n, len(names)))
    return Predictions(scale * z, drawn_labels(z, rng), class_names=names)


def create(seed=1, names=NAMES, **options):
    fitted = calibrators.fit("Temperature", draw(1000, seed, names=names))
    options = {"require": REQUIRE, "risk": 0.1, "alpha": 0.1} | options
    return Contract.create(fitted, draw(2000, seed + 100, names=names), **options)


@pytest.fixture(scope="module")
def contract():
    return create()


def write_table(p, path):
    columns = dict(zip([f"prob_{name}" for name in p.class_names], softmax(p.logits, 1).T, strict=True))
    frame = polars.DataFrame(columns | {"label": [p.class_names[i] for i in p.labels]})
    frame.with_columns(id=polars.Series([f"{path.stem}-{i}" for i in range(len(p))])).write_csv(path)


# Creation and use


def test_single_requirement_is_no_list_of_letters():
    contract = create(require="ece < 0.06", risk=None, alpha=None)
    assert contract.requirements == ("ece < 0.06",)
    assert contract.check(draw(2000, 7)).status == "holds"


def test_parts_are_those_of_the_functions(contract):
    """The threshold, the sets and the verdicts are those of calibrated predictions."""
    reference, new = draw(2000, 101), draw(500, 7)
    calibrated = reference.apply(contract.calibrator)
    assert contract.threshold == certify_threshold(calibrated, risk=0.1)
    assert contract.sets == Sets.fit(calibrated)
    assert contract.verdicts == tuple(c.description for c in check(calibrated, REQUIRE).conditions)
    mapped = new.apply(contract.calibrator)
    assert np.array_equal(contract.acts_on(new), contract.threshold.acts_on(mapped))
    assert np.array_equal(contract.prediction_sets(new), contract.sets.apply(mapped))
    assert contract.check(new) == check(mapped, REQUIRE)


def test_classes_may_come_in_any_order(contract):
    new = draw(300, 8)
    order = [2, 0, 1]
    shuffled = Predictions(
        new.logits[:, order], np.argsort(order)[new.labels], class_names=tuple(NAMES[i] for i in order)
    )
    assert np.array_equal(contract.prediction_sets(shuffled), contract.prediction_sets(new))
    assert np.array_equal(contract.acts_on(shuffled), contract.acts_on(new))


def test_what_does_not_hold_is_refused():
    fit, reference = draw(1000, 1), draw(2000, 101)
    fitted = calibrators.fit("Temperature", fit)
    assert code_of(Contract.create, fitted, fit) == "fitted_on_same"
    assert code_of(Contract.create, fitted, reference, require=["ece < 0.001"]) == "requirement_not_met"
    assert code_of(Contract.create, fitted, reference, require=["nll < old"]) == "no_old"
    assert code_of(Contract.create, fitted, reference, risk=1e-4) == "not_certified"


def test_what_was_not_promised_is_refused():
    promised_nothing = create(require=(), risk=None, alpha=None)
    p = draw(50, 9)
    assert code_of(promised_nothing.check, p) == "no_requirement"
    assert code_of(promised_nothing.acts_on, p) == "no_threshold"
    assert code_of(promised_nothing.prediction_sets, p) == "no_sets"
    assert code_of(promised_nothing.calibrate, draw(50, 9, names=("cat", "dog"))) == "class_names"


def test_an_event_holds_in_every_part(tmp_path):
    contract = create(of="dog", alpha=None, require=["signed_gap < 0.1"], risk=0.2)
    contract.save(tmp_path / "m.contract")
    loaded, new = Contract.load(tmp_path / "m.contract"), draw(1000, 10)
    mapped = new.apply(contract.calibrator).with_event("dog")
    assert loaded.of == 1
    assert loaded.check(new) == check(mapped, ["signed_gap < 0.1"])
    assert np.array_equal(loaded.acts_on(new), mapped.events.confidence >= contract.threshold.threshold)


def test_the_event_does_not_depend_on_the_form_of_new_predictions():
    """Of two classes the event is class 1, whether new predictions have one column or two."""
    contract = create(names=("no", "yes"), require=(), alpha=None, risk=0.2)
    new = draw(500, 12, names=("no", "yes"))
    single = Predictions.from_binary_logits(new.logits[:, 1] - new.logits[:, 0], new.labels, class_names=("no", "yes"))
    expected = softmax(new.apply(contract.calibrator).logits, 1)[:, 1] >= contract.threshold.threshold
    assert contract.of == 1
    assert np.array_equal(contract.acts_on(new), expected)
    assert np.array_equal(contract.acts_on(single), expected)


def test_groups_that_the_calibrator_does_not_know_have_a_note(tmp_path):
    def grouped(n, seed, names):
        p = draw(n, seed)
        return Predictions(p.logits, p.labels, class_names=NAMES, groups=[names[i % len(names)] for i in range(n)])

    fitted = calibrators.fit("GroupCalibrated", grouped(600, 1, "ab"))
    contract, new = Contract.create(fitted, grouped(600, 2, "ab"), require=["ece < 0.5"]), grouped(60, 3, "az")
    contract.save(tmp_path / "m.contract")
    new.save(tmp_path / "new.npz")
    frame = polars.DataFrame(softmax(new.logits, 1), [f"prob_{name}" for name in NAMES])
    frame.with_columns(group=polars.Series(["a", "z"] * 30)).write_csv(tmp_path / "new.csv")
    assert len(contract.check(new).notes) == 1 + bool(contract.check(new).passing_constants)
    for suffix in (".npz", ".csv"):
        notes = []
        output = tmp_path / f"out{suffix}"
        apply_to_file(tmp_path / "m.contract", tmp_path / f"new{suffix}", output, on_note=notes.append)
        assert sum("GroupCalibrated" in note for note in notes) == 1


def test_a_contract_is_no_calibrator(contract, tmp_path):
    contract.save(tmp_path / "m.contract")
    with refused("not_a_calibrator", "Contract"):
        calibrators.load(tmp_path / "m.contract")


def test_file_gives_the_same_contract(contract, tmp_path):
    contract.save(tmp_path / "a.contract")
    loaded = Contract.load(tmp_path / "a.contract")
    loaded.save(tmp_path / "b.contract")
    again = Contract.load(tmp_path / "b.contract")
    assert loaded.seal == again.seal == contract.seal
    assert str(loaded) == str(contract)
    for name in {field.name for field in fields(Contract)} - {"calibrator"}:
        assert getattr(loaded, name) == getattr(contract, name)
    assert code_of(contract.save, tmp_path / "a.zip") == "suffix"


# Files that were changed


def test_parts_of_another_contract_are_refused(contract, tmp_path):
    """A file whose checksum is right is refused if its sets or its calibrator are of other classes."""
    sets = Sets.fit(draw(60, 5, names=("a", "b")))
    matrix = calibrators.fit("Vector", draw(60, 5, names=("a", "b")))
    for i, change in enumerate(
        ({"sets": sets}, {"calibrator": matrix}, {"k": 2}, {"class_names": ("cat", "owl", "dog")})
    ):
        replace(contract, **change).save(tmp_path / f"{i}.contract")
        assert code_of(Contract.load, tmp_path / f"{i}.contract") == "file_content"


def test_every_field_changes_the_seal(contract):
    changes = {"requirements": ("ece < 0.5",), "level": 0.5, "of": 1, "n": 5, "data": "0", "time": "", "sets": None}
    threshold = replace(contract.threshold, errors=0)
    seals = {replace(contract, **{name: value}).seal for name, value in (changes | {"threshold": threshold}).items()}
    assert len({contract.seal, *seals}) == len(changes) + 2


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5, 0.9, 0.999])
def test_cut_file_is_refused(contract, tmp_path, share):
    path = tmp_path / "m.contract"
    contract.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert code_of(Contract.load, path) == "unreadable"


def test_flipped_bits_are_refused(contract, tmp_path):
    path = tmp_path / "m.contract"
    contract.save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(content), 60):
        changed = bytearray(content)
        changed[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        assert code_of(Contract.load, path) in ("unreadable", "not_a_calibrator", "newer_format", "checksum")


def test_other_files_are_refused(contract, tmp_path):
    (tmp_path / "text.contract").write_bytes(b"ece < 0.02\n")
    assert code_of(Contract.load, tmp_path / "text.contract") == "unreadable"
    calibrators.save(contract.calibrator, tmp_path / "c.contract")
    assert code_of(Contract.load, tmp_path / "c.contract") == "file_content"
    assert code_of(Contract.load, tmp_path / "none.contract") == "no_file"


# Commands


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with tables, a calibrator and its contract."""
    tmp_path = tmp_path_factory.mktemp("contract")
    write_table(draw(1000, 1), tmp_path / "val.csv")
    fit = Predictions.load(tmp_path / "val.csv")
    calibrators.save(calibrators.fit("Temperature", fit), tmp_path / "c.safetensors", fitted_on=fit)
    write_table(draw(2000, 101), tmp_path / "test.csv")
    write_table(draw(2000, 3), tmp_path / "new.csv")
    write_table(draw(2000, 4, scale=6.0), tmp_path / "bad.csv")
    promises = ("-r", "ece < 0.06", "--risk", "0.1", "--alpha", "0.1")
    created = run("contract", "c.safetensors", "test.csv", *promises, "-o", "m.contract", folder=tmp_path)
    assert (created.returncode, created.stderr) == (0, "")
    return tmp_path


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "copy")


def test_commands_take_a_contract(folder):
    assert run("check", "new.csv", "--contract", "m.contract", folder=folder).returncode == 0
    assert run("check", "bad.csv", "--contract", "m.contract", folder=folder).returncode == 3
    assert run("watch", "m.watch", "new.csv", "--contract", "m.contract", folder=folder).returncode == 0
    assert run("watch", "m.watch", "bad.csv", "--contract", "m.contract", folder=folder).returncode == 3
    applied = run("apply", "m.contract", "new.csv", "-o", "out.csv", folder=folder)
    assert applied.returncode == 0
    table, contract, p = polars.read_csv(folder / "out.csv"), Contract.load(folder / "m.contract"), draw(2000, 3)
    assert table["act"].to_list() == contract.acts_on(p).tolist()
    sets = [" | ".join(np.array(NAMES)[row]) for row in contract.prediction_sets(p)]
    assert [text or "" for text in table["prediction_set"]] == sets
    probs = table.select("^calibrated_prob_.*$").to_numpy()
    assert np.allclose(probs, softmax(contract.calibrate(p).logits, 1), atol=1e-12)


def test_columns_of_a_table_may_come_in_any_order(folder):
    """The event is the class of its name, not of its place in the new table."""
    run("contract", "c.safetensors", "test.csv", "--risk", "0.2", "--of", "dog", "-o", "dog.contract", folder=folder)
    table = polars.read_csv(folder / "new.csv")
    table.select("prob_owl", "prob_cat", "prob_dog", "id").write_csv(folder / "shuffled.csv")
    for name in ("new", "shuffled"):
        run("apply", "dog.contract", f"{name}.csv", "-o", f"{name}_out.csv", folder=folder)
    acts = [polars.read_csv(folder / f"{name}_out.csv")["act"].to_list() for name in ("new", "shuffled")]
    assert acts[0] == acts[1]
    assert acts[0] == Contract.load(folder / "dog.contract").acts_on(draw(2000, 3)).tolist()


def test_a_watch_keeps_to_its_contract(folder):
    run("watch", "m.watch", "new.csv", "--contract", "m.contract", folder=folder)
    assert Watch.load(folder / "m.watch").contract == Contract.load(folder / "m.contract").seal
    assert run("watch", "m.watch", "bad.csv", folder=folder).code == "contract_differs"
    run("contract", "c.safetensors", "test.csv", "-o", "other.contract", folder=folder)
    assert run("watch", "m.watch", "bad.csv", "--contract", "other.contract", folder=folder).code == "contract_differs"
    replaced = run("watch", "m.watch", "new.csv", "--contract", "other.contract", "--reset", folder=folder)
    assert replaced.returncode == 0


def test_commands_refuse_what_a_contract_excludes(folder):
    assert run("contract", "c.safetensors", "val.csv", "-o", "n.contract", folder=folder).code == "fitted_on_same"
    assert run("contract", "c.safetensors", "test.csv", "-o", "n.zip", folder=folder).code == "suffix"
    for option in ("--score", "aps"), ("--delta", "0.2"):
        refused = run("contract", "c.safetensors", "test.csv", *option, "-o", "n.contract", folder=folder)
        assert refused.code == "option_alone"
    refusal = run("check", "new.csv", "--contract", "m.contract", "-r", "ece < 0.5", folder=folder)
    assert (refusal.returncode, refusal.code) == (2, "contract_and_requirements")
    changed = (folder / "m.contract").read_bytes()[:-40]
    (folder / "m.contract").write_bytes(changed)
    for command in (
        ("check", "new.csv", "--contract", "m.contract"),
        ("watch", "n.watch", "new.csv", "--contract", "m.contract"),
        ("apply", "m.contract", "new.csv", "-o", "o.csv"),
    ):
        refusal = run(*command, folder=folder)
        assert (refusal.returncode, refusal.code, refusal.stderr.count("\n")) == (2, "unreadable", 1)
