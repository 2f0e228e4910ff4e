"""The documentation site: `make site` builds it, `build/site/index.html` opens it, without a network."""

from __future__ import annotations

import re

import pydantic

import veil
import veil.accounting
import veil.metrics

for lazy in (veil, veil.accounting, veil.metrics):  # names that are imported when they are first used
    vars(lazy).update({name: getattr(lazy, name) for name in lazy.__all__})

project = "Veil"
copyright = "the Veil authors"
release = veil.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = "Veil"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

# Every public name is shown as its docstring says; types stand in the signature only.
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {
    "members": True,
    "exclude-members": "Batch, CROSSED, EVERYBODY, Event, HOLE, LossFn, LossFunction, Weigh, model_config",
}
# Trainers of other packages, which a reader of the reference need not have.
autodoc_mock_imports = ["pytorch_lightning", "transformers"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False
python_use_unqualified_type_names = True


def setup(app: object) -> None:
    """Docstrings are written for readers of the code, in Markdown's manner: `name` is code, and * is a star."""
    app.connect("autodoc-process-docstring", _from_markdown, priority=400)  # type: ignore[attr-defined]
    app.connect("source-read", _with_pages_below)  # type: ignore[attr-defined]


def _with_pages_below(app: object, name: str, source: list[str]) -> None:
    """Pages of methods and results lie below their lists, which are plain Markdown outside the site."""
    if name in ("methods/README", "results/README"):
        source[0] += "\n\n:::{toctree}\n:hidden:\n:glob:\n\n*\n:::\n"


def _from_markdown(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    text = "\n".join([*lines, *_fields(obj)] if what == "class" else lines)
    # An example goes from its first prompt to an empty line, with what it prints: nothing in it is changed.
    parts = re.split(r"(`+[^`]+`+|^ *>>>.*(?:\n.*\S.*)*)", text, flags=re.MULTILINE)
    for at, part in enumerate(parts):
        if part.startswith("`"):
            behind = parts[at + 1][:1] if at + 1 < len(parts) else ""
            parts[at] = f"``{part.strip('`')}``" + ("\\ " if behind.isalnum() or behind == "(" else "")
        elif not part.lstrip().startswith(">>>"):
            parts[at] = re.sub(r"([*|])", r"\\\1", re.sub(r"(\w)_(?!\w)", r"\1\\_", part))
    # In "Returns:" there are sentences, no types: a colon in one of them must not be read as one.
    whole = re.sub(r"^Returns:\n((?: +.*(?:\n|$))+)", _returned, "".join(parts), flags=re.MULTILINE)
    lines[:] = whole.split("\n")


def _fields(obj: object) -> list[str]:
    """What can be asked, of a request: its own fields, each with its description; those of its base are there."""
    if not (isinstance(obj, type) and issubclass(obj, pydantic.BaseModel)):
        return []
    own = [(name, field) for name, field in obj.model_fields.items() if name in vars(obj).get("__annotations__", {})]
    return ["", "Args:", *(f"    {name}: {' '.join((field.description or '').split())}" for name, field in own), ""]


def _returned(section: re.Match[str]) -> str:
    words = " ".join(section.group(1).split())
    return f":returns: {words}\n"
