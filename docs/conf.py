"""Sphinx configuration: `make docs` builds the site in out/docs, offline, and treats every warning as an error.

The theme is PyData's. numpy, pandas and scikit-learn use it, it is released several times a year, and it has light and
dark modes. The last release of furo is from 2025.
"""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from extension import checked, commands, generated, reference  # noqa: E402

from calibrant import __version__  # noqa: E402

project = "Calibrant"
author = "the Calibrant authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "extension.mathml",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = [
    "extension",
    "gallery",
    "tutorials",
    "**/README.rst",
    "auto_*/**/*.py",
    "auto_*/**/*.ipynb",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
suppress_warnings = ["config.cache", "sphinx_gallery.config", "ref.python"]  # intended
default_role = "literal"
smartquotes = False  # keep the quotes of settings
maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
add_module_names = False
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "dollarmath", "html_image", "deflist"]
myst_heading_anchors = 3
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "pydata_sphinx_theme"
html_title = f"Calibrant {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "logo": {"text": "Calibrant"},
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 6,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "glossary": [], "auto_gallery/index": []}


def _reset_figures(gallery_conf: dict[str, Any], fname: Any) -> None:
    """Reset figure settings and random numbers before every script."""
    import matplotlib
    import torch

    matplotlib.rcParams.update(matplotlib.rcParamsDefault)
    matplotlib.use("agg")
    matplotlib.rcParams["figure.dpi"] = 100
    matplotlib.rcParams["figure.constrained_layout.use"] = True
    torch.manual_seed(0)


sphinx_gallery_conf = {
    "examples_dirs": ["tutorials", "gallery"],
    "gallery_dirs": ["auto_tutorials", "auto_gallery"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"matplotlib|Axes|Text|Line2D|tuple|list",
    "reset_modules": (_reset_figures,),
    "matplotlib_animations": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "download_all_examples": False,
    "min_reported_time": 1e9,
    "plot_gallery": True,
    "thumbnail_size": (320, 240),
    "image_scrapers": ("matplotlib",),
    "write_computation_times": False,
}


def _write_pages(app: Any) -> None:
    reference.write(HERE / "reference" / "api")
    command_page = HERE / "reference" / "command_line.md"
    text = commands.page()
    if not command_page.exists() or command_page.read_text() != text:
        command_page.write_text(text)


def _edit_source(app: Any, name: str, source: list[str]) -> None:
    """Redirect links to files of the repository root to their pages, and insert the tables."""
    depth = "../" * name.count("/")
    for file, page in {
        "SECURITY": "security",
        "CONTRIBUTING": "contributing",
        "CHANGELOG": "changelog",
    }.items():
        for link in (f"](../{file}.md)", f"]({file}.md)", f"](../../{file}.md)"):
            source[0] = source[0].replace(link, f"]({depth}project/{page}.md)")
    source[0] = generated.insert_tables(source[0])


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx reads any page."""
    app.connect("builder-inited", _write_pages, priority=1)
    app.connect("source-read", _edit_source)
    app.connect("build-finished", checked.check)
