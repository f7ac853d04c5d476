"""The configuration of Sphinx: `make docs` builds the site from the documents as they are.

The root of the sources is the project, so that a link between two documents, or to a file, is the
same on the site and in the repository. `navigation.toml` lists the pages of each user.
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

import partita  # noqa: E402 - after the path

project = "Partita"
author = "The Partita founders"
project_copyright = "The Partita founders"
release = version = partita.__version__

root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["docs/**", "*.md", "bench/*.md", "examples/**", "src/partita/*/DESIGN.md"]
exclude_patterns = ["**/node_modules", "**/__pycache__", "examples/*.py"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "error_lookup",
    "generated_reference",
    "site_navigation",
]
suppress_warnings = [
    "ref.python",  # a type that two packages export: the first one is linked
    "myst.header",  # pages of a guide may begin below the first level
]

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 5
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other packages and of private modules

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # those of SQLAlchemy refer to its own pages
autodoc_class_signature = "mixed"
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"Partita {release}"
html_favicon = "../../src/partita/console/static/icon.svg"
html_logo = "../../src/partita/console/static/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["lookup.js"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["pages"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#1d5fa8", "color-brand-content": "#1d5fa8"},
    "dark_css_variables": {"color-brand-primary": "#79b8ff", "color-brand-content": "#79b8ff"},
}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
linkcheck_ignore = [r"http://127\.0\.0\.1.*", r"https://(www\.)?example\.(com|org).*"]
