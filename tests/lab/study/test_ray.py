"""Studies on a cluster with killed workers, nodes and drivers end like those without a cluster."""

import os
import shutil
import signal
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from processes import ENVIRONMENT, finish, finished_runs, rows, start, wait, working
from refusals import refused

from calibrant.lab.study import Recipe, Run, Store
from calibrant.lab.study.engine import Ray, _marker, _pickle_work, _run_in_worker, execute


@pytest.fixture
def cluster(halt):
    """Start two nodes of one core each, whose processes can be paused; their GPUs are only a number."""
    Cluster = pytest.importorskip("ray.cluster_utils", reason="ray is not installed").Cluster
    node = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80_000_000}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        environment.setenv("HALTS", ENVIRONMENT["HALTS"])
        environment.setenv("RAY_AUTH_MODE", ENVIRONMENT["RAY_AUTH_MODE"])
        environment.setenv("RAY_worker_niceness", "0")  # else workers starve for minutes beside other tests
        built = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
        try:
            built.add_node(**node)
            yield built
        finally:
            built.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks for processes to kill in /proc")
def test_killed_workers_nodes_and_drivers_change_nothing(tiny, tmp_path, cluster, halt, untouched):
    folder, halted = tmp_path / "store", tmp_path / "halted"
    options = "--engine", "ray", "--address", cluster.address, "--gpus", "0"

    halt(0)
    driver = start(tiny, folder, *options)
    wait(lambda: len(list(halted.iterdir())) == 2, driver)
    worker = next(halted.iterdir())
    os.kill(int(worker.name), signal.SIGKILL)
    wait(lambda: int(worker.name) not in working(folder))
    worker.unlink()
    wait(lambda: len(list(halted.iterdir())) == 2, driver)  # another worker has replaced it
    halt(2)
    wait(lambda: len(finished_runs(folder)) >= 2 and list(halted.iterdir()), driver)
    driver.kill()
    driver.communicate()
    wait(lambda: not working(folder))  # its workers end with it
    stored = finished_runs(folder)
    assert 2 <= len(stored) <= 3
    shutil.rmtree(halted)
    halted.mkdir()

    halt(len(stored))
    driver = start(tiny, folder, *options)
    wait(lambda: len(list(halted.iterdir())) == 2, driver)
    cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
    wait(lambda: len(working(folder)) == 1)  # the worker of a node ends with it
    halt(9)
    text = finish(driver)
    assert text.count("done ") == 8 - len(stored), text
    assert "raylet" not in text
    assert stored.items() <= finished_runs(folder).items()
    assert_frame_equal(rows(tiny, folder), untouched, check_exact=True)

    shutil.rmtree(folder / "runs" / next(iter(stored)))
    assert finish(start(tiny, folder, *options[:-1], "0.25")).count("done ") == 1
    assert_frame_equal(rows(tiny, folder), untouched, check_exact=True)


@pytest.fixture
def one_run(tmp_path):
    """Return a run of one epoch, an empty store, and the work on it."""
    recipe = Recipe(epochs=1, batch_size=20, milestones=())
    run = Run("blobs(train=60, val=40, test=50)", "mlp(features=2, hidden=())", "focal", 0, recipe)
    store = Store(tmp_path / "out")
    return run, store, partial(execute, store=store)


def test_a_worker_without_the_folder_sends_the_files_of_finished_runs(one_run, tmp_path):
    run, store, work = one_run
    events = list(_run_in_worker(*_pickle_work(work, run, store, marker=str(tmp_path / "none"))))
    assert [event.kind for event in events] == ["epoch", "files", "done"]
    assert run not in store
    content = events[1].content
    changed = content["files"] | {"test.safetensors": content["files"]["val.safetensors"]}
    with refused("damaged"):
        store.add(content["name"], changed)
    store.add(**content)
    assert run in store
    with _marker(store.root) as marker:
        events = list(_run_in_worker(*_pickle_work(work, run, store, marker)))
    assert [event.kind for event in events] == ["found"]


@pytest.mark.slow
def test_a_cluster_without_a_shared_folder_fills_the_store(one_run, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    run, store, work = one_run
    monkeypatch.setattr("calibrant.lab.study.engine._marker", lambda root: nullcontext(str(tmp_path / "none")))
    assert [event.kind for event in Ray(gpus=0)(work, [run], store)] == ["epoch", "done"]
    assert len(store.get(run, "test")) == 50


def test_a_cluster_that_does_not_start_is_refused(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray is not installed")

    def slow(*_, **__):
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray, "init", slow)
    with refused("ray_start") as caught:
        list(Ray()(lambda run: iter(()), [], Store(tmp_path)))
    assert "The current node timed out during startup" in str(caught.value)


def test_an_unreachable_cluster_is_refused(tmp_path, closed_port):
    pytest.importorskip("ray", reason="ray is not installed")
    with refused("ray_address") as caught:
        list(Ray(closed_port)(lambda run: iter(()), [], Store(tmp_path)))
    assert str(closed_port) in str(caught.value)
