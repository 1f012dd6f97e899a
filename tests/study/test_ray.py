"""A real cluster of two nodes on this machine, really broken: a study ends on it as it does without one."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from processes import ENVIRONMENT, done, finish, rows, start, wait, working

from calibrant import InputError
from calibrant.study import Store
from calibrant.study.engine import Ray


@pytest.fixture
def cluster():
    """Two nodes of one core each; what they call GPUs is a number to share."""
    Cluster = pytest.importorskip("ray.cluster_utils", reason="ray is not installed").Cluster
    node = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80_000_000}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        made = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
        try:
            made.add_node(**node)
            yield made
        finally:
            made.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks for processes to kill in /proc")
def test_killed_workers_nodes_and_drivers_change_nothing(tiny, tmp_path, cluster, untouched):
    folder = tmp_path / "ray"
    options = "--engine", "ray", "--address", cluster.address, "--gpus", "0"

    driver = start(tiny, folder, *options)
    wait(lambda: len(done(folder)) >= 1 and working(folder))
    os.kill(working(folder)[0], signal.SIGKILL)  # a worker
    wait(lambda: len(done(folder)) >= 2 and working(folder))
    driver.kill()
    driver.communicate()
    wait(lambda: not working(folder))  # its workers end with it
    kept = done(folder)
    assert 2 <= len(kept) < 8

    driver = start(tiny, folder, *options)
    wait(lambda: len(done(folder)) > len(kept) and len(working(folder)) == 2)
    cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
    text = finish(driver)
    assert text.count("done ") == 8 - len(kept), text
    assert kept.items() <= done(folder).items()
    assert_frame_equal(rows(tiny, folder), untouched, check_exact=True)

    shutil.rmtree(folder / "runs" / next(iter(kept)))
    assert finish(start(tiny, folder, *options[:-1], "0.25")).count("done ") == 1
    assert_frame_equal(rows(tiny, folder), untouched, check_exact=True)


def test_a_cluster_that_is_not_there_is_told_of(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:9: Connection refused"):
        list(Ray("127.0.0.1:9")(lambda run: iter(()), [], Store(tmp_path)))
