"""Where a chapter can be run without installing anything, once the repository is public."""

from urllib.parse import urlparse

import nbformat
from nbformat import NotebookNode

PUBLISHED = "gh-pages"
"""The branch that holds the published site, notebooks included: Colab opens notebooks from a repository only."""


def links(repository: str, commit: str, version: str, page: str) -> dict[str, str]:
    """Label to address of the services that run a chapter.

    Binder opens the notebook that `postBuild` makes there, at the commit of the build, Colab the executed notebook of
    the published version. There are none without a public repository on GitHub, or for a tree that differs from its
    commit.
    """
    address = urlparse(repository)
    if address.hostname != "github.com" or "+" in commit:
        return {}
    name = address.path.strip("/").removesuffix(".git")
    return {
        "Binder": f"https://mybinder.org/v2/gh/{name}/{commit}?labpath=book%2F{page}.ipynb",
        "Colab": f"https://colab.research.google.com/github/{name}/blob/{PUBLISHED}/{version}/notebooks/{page}.ipynb",
    }


def prepared(notebook: NotebookNode, repository: str, commit: str) -> NotebookNode:
    """The notebook with a first cell that fetches library and data on Colab, and does nothing elsewhere."""
    source = (
        "import os, subprocess, sys\n\n"
        'if "google.colab" in sys.modules:  # a machine without the library and the data beside this chapter\n'
        f'    subprocess.run(["git", "clone", "--quiet", "{repository}", "qkspectra-book"], check=True)\n'
        f'    subprocess.run(["git", "-C", "qkspectra-book", "checkout", "--quiet", "{commit}"], check=True)\n'
        '    install = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-requires-python"]\n'
        '    subprocess.run([*install, "-e", "qkspectra-book[book]"], check=True)\n'
        '    os.chdir("qkspectra-book/book")'
    )
    cell = nbformat.v4.new_code_cell(source, id="fetch-the-book")
    return nbformat.from_dict({**notebook, "cells": [cell, *notebook.cells]})
