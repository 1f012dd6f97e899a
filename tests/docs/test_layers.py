"""The picture of the layers and the table of folders follow from the import rules."""

import importlib.util

import pytest
from doc_pages import ROOT


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("draw_layers", ROOT / "tools/draw_layers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_package_is_in_a_layer_and_has_one_role(tool):
    packages = sorted(path.parent.name for path in (ROOT / "src/calibrant").glob("*/__init__.py"))
    assert sorted(name for row in tool.layers() for name in row) == packages
    assert sorted(name for _, names in tool.ROLES.values() for name in names) == packages


def test_picture_and_table_are_current(tool):
    assert all((ROOT / path).read_text() == text for path, text in tool.expected().items())


def test_other_layers_make_both_stale(tool, monkeypatch):
    layers = tool.layers()
    monkeypatch.setattr(tool, "layers", lambda: layers[::-1])
    assert not any((ROOT / path).read_text() == text for path, text in tool.expected().items())
