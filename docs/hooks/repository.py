"""What depends on the repository's address, `repo_url` in mkdocs.yml: where it is empty, none of this is shown."""

from __future__ import annotations

import json
import re

import links

BRANCH = "main"


def standalone(repo_url: str | None, path: str, notebook: str) -> str:
    """A notebook for download. Words stand for pictures until it runs: with these, it would be four times as large.

    Away from its folder, its links lead to the code host, if there is one.

    Args:
        repo_url: the repository's address.
        path: where the notebook lies in the repository.
        notebook: its text, JSON.
    """
    content = json.loads(notebook)
    for cell in content["cells"]:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop("image/svg+xml", None)
        if repo_url and cell["cell_type"] == "markdown":
            text = links.absolute("".join(cell["source"]), path, f"{repo_url.rstrip('/')}/blob/{BRANCH}/")
            cell["source"] = text.splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def edit(repo_url: str | None, path: str) -> str | None:
    """Where a file can be changed on the code host."""
    return f"{repo_url.rstrip('/')}/edit/{BRANCH}/{path}" if repo_url else None


def started(repo_url: str | None, notebook: str) -> list[str]:
    """Links that run a notebook in Colab and in Binder; none for an address that is not on GitHub, where both look."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repo_url or "")
    if not match:
        return []
    return [
        f"[Open in Colab](https://colab.research.google.com/github/{match[1]}/blob/{BRANCH}/{notebook})",
        f"[Open in Binder](https://mybinder.org/v2/gh/{match[1]}/{BRANCH}?urlpath=doc/tree/{notebook})",
    ]


def clone(repo_url: str | None) -> str:
    """The commands that fetch the project, as a block of Markdown; "" where its address is not known."""
    if not repo_url:
        return ""
    address = repo_url.rstrip("/").removesuffix(".git")
    return f"```sh\ngit clone {address}.git\ncd {address.rpartition('/')[2]}\n```"
