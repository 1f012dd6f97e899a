"""The page on reductions runs, and every engine gives the state of one process to the last bit."""

import pytest
import torch
import torch.distributed as dist
from shown import run
from torch import multiprocessing


def shown() -> dict:
    """Everything that the page defines."""
    return run("docs/more_than_memory.md")


def same(one, other) -> bool:
    return torch.equal(one.sums, other.sums) and torch.equal(one.cells, other.cells) and one.k == other.k


def test_parts_are_the_whole(capsys):
    page = shown()
    assert same(sum(page["parts"]), page["whole"])
    assert "ECE" in capsys.readouterr().out


def process(rank: int, address: str, queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    page = shown()
    mine = slice(0, 1700) if rank == 0 else slice(1700, 6000)
    found = page["sum_over_processes"](page["Summary"].empty().add(page["logits"][mine], page["labels"][mine]))
    queue.put(same(found, page["whole"]) and len(found) == 6000)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_torch_distributed(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=process, args=(rank, str(tmp_path / "meet"), queue)) for rank in (0, 1)]
    for p in processes:
        p.start()
    assert [queue.get(timeout=300) for _ in processes] == [True, True]
    for p in processes:
        p.join(timeout=60)


@pytest.mark.large  # starts a cluster of its own, which another beside it may keep from starting
@pytest.mark.filterwarnings("ignore")  # of Ray and pandas
def test_ray_data():
    ray = pytest.importorskip("ray", reason="ray is not installed")
    data = pytest.importorskip("ray.data")
    page = shown()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        rows = data.from_items([{"logits": z, "label": int(y)} for z, y in zip(page["logits"], page["labels"])])
        assert same(page["measure_with_ray"](rows), page["whole"])
    finally:
        ray.shutdown()


def test_dask():
    bag = pytest.importorskip("dask.bag", reason="dask is not installed")
    import dask

    page = shown()
    pairs = [(page["logits"][i : i + 250], page["labels"][i : i + 250]) for i in range(0, 6000, 250)]
    with dask.config.set(scheduler="synchronous"):
        assert same(page["measure_with_dask"](bag.from_sequence(pairs, npartitions=5)), page["whole"])
