"""The page on losses runs, and speaks of losses that there are."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from calibrant.registry import LOSSES
from doc_pages import run

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()


def test_examples_of_the_page_run():
    torch.manual_seed(0)
    names = run("docs/losses.md")
    assert names["s"].grad.isfinite().all()
    assert names["logits"].grad.isfinite().all()


def test_losses_of_the_page_are_registered():
    texts = re.findall(r'Criterion\("([^"]+)"', PAGE) + re.findall(r"^\| `(\w+\([^`]*\))`", PAGE, re.MULTILINE)
    texts += re.findall(r'"([^"]+)"', re.search(r"losses = \[(.*)\]", PAGE)[1])
    assert len(texts) > 9
    for text in texts:
        LOSSES.method(text)
