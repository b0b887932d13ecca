"""The site: `make docs` builds it into docs/_build/html, without the network, and warnings are errors."""

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ergodrift

project = "ergodrift"
author = "The ergodrift developers"
project_copyright = author
release = version = ergodrift.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
    "commands",
    "docstrings",
    "llms",
]
exclude_patterns = ["_build", "gallery/**/*.md5", "gallery/**/*.py", "gallery/**/*.ipynb"]
templates_path = ["_templates"]
root_doc = "index"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]  # functions in sphinx_gallery_conf cannot be pickled
nitpick_ignore_regex = [("py:.*", r"(?!ergodrift\.\w+$).*")]  # types of others, and ours that are not public

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]  # its face is shown, not run
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "PyTree", "Scalar", "X")}
python_maximum_signature_line_length = 88
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(^|/)(?!plot_)[^/]*\.py$",
    "write_computation_times": False,
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("ergodrift",),
    "reference_url": {"ergodrift": None},
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "download_all_examples": True,
    "image_srcset": ["2x"],
    "parallel": 2,  # processes of their own: this one is forked nowhere and starts no threads of JAX
    "matplotlib_animations": False,
    "show_memory": False,
    "min_reported_time": 1,
    "remove_config_comments": True,
    "copyfile_regex": r".*\.csv",
}

html_theme = "pydata_sphinx_theme"
html_title = f"ergodrift {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": f"ergodrift {version}", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "github_url": "https://github.com/ergodrift/ergodrift",
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher", "navbar-icon-links"],
    "show_toc_level": 2,
    "secondary_sidebar_items": {"**": ["page-toc", "sg_download_links"], "gallery/index": ["page-toc"]},
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": [], "choose": []}
