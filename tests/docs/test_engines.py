"""The page on more data than memory runs, and every engine gives the state of one process to the last bit."""

import numpy as np
import pytest
from doc_pages import run

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import multiprocessing


def page_namespace() -> dict:
    """Run the page and return everything that it defines."""
    return run("docs/more_than_memory.md")


def same(first, second) -> bool:
    return np.array_equal(first.sums, second.sums) and np.array_equal(first.cells, second.cells) and first.k == second.k


def test_sum_of_parts_is_the_whole(capsys):
    page = page_namespace()
    assert same(sum(page["parts"]), page["whole"])
    assert "ECE" in capsys.readouterr().out


def reduce_in_process(rank: int, address: str, queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    page = page_namespace()
    rows = slice(0, 1700) if rank == 0 else slice(1700, 6000)
    summary = page["sum_over_processes"](page["Summary"].empty().add(page["logits"][rows], page["labels"][rows]))
    queue.put(same(summary, page["whole"]) and len(summary) == 6000)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_torch_distributed(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=reduce_in_process, args=(rank, str(tmp_path / "meet"), queue)) for rank in (0, 1)
    ]
    for p in processes:
        p.start()
    assert [queue.get(timeout=300) for _ in processes] == [True, True]
    for p in processes:
        p.join(timeout=60)


@pytest.mark.large  # starts its own cluster, which fails next to another one
@pytest.mark.filterwarnings("ignore")  # of Ray and pandas
def test_ray_data():
    ray = pytest.importorskip("ray", reason="ray is not installed")
    data = pytest.importorskip("ray.data")
    page = page_namespace()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        rows = data.from_items([{"logits": z, "label": int(y)} for z, y in zip(page["logits"], page["labels"])])
        assert same(page["measure_with_ray"](rows), page["whole"])
    finally:
        ray.shutdown()


def test_dask():
    bag = pytest.importorskip("dask.bag", reason="dask is not installed")
    import dask

    page = page_namespace()
    pairs = [(page["logits"][i : i + 250], page["labels"][i : i + 250]) for i in range(0, 6000, 250)]
    with dask.config.set(scheduler="synchronous"):
        assert same(page["measure_with_dask"](bag.from_sequence(pairs, npartitions=5)), page["whole"])
