"""What makes the pages: notebooks, links, formulas, chapters, claims, their sources, and the reference."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from xml.etree import ElementTree

import pytest

from minitrain.benchmarks import first_hour
from tests.site.cells import PIXEL, code_cell, display, markdown_cell, stream
from tests.site.conftest import ROOT

pytest.importorskip("material", reason="the site's packages are not installed")

import chapters  # noqa: E402
import claims_page  # noqa: E402
import formulas  # noqa: E402
import lift  # noqa: E402
import links  # noqa: E402
import notebooks  # noqa: E402
import papers  # noqa: E402
import reports  # noqa: E402
import repository  # noqa: E402


def page_of(*cells: dict) -> notebooks.Page:
    return notebooks.to_page({"cells": [markdown_cell("# Title"), *cells]}, "name")


# Notebooks


def test_outputs_are_told_apart():
    error = {"output_type": "error", "ename": "RuntimeError", "evalue": "failed on ranks [0]", "traceback": ["a", "b"]}
    outputs = stream("\x1b[32mone\x1b[0m\n"), stream("two\n"), stream("careful\n", "stderr"), error
    page = page_of(code_cell("%%ranks\nrun()", *outputs))
    assert "``` { .python .nb-in }\n%%ranks\nrun()\n```" in page.markdown
    assert "``` { .text .nb-out .no-copy }\none\ntwo\n```" in page.markdown
    assert "``` { .text .nb-out .nb-stderr .no-copy }\ncareful\n```" in page.markdown
    assert "``` { .text .nb-out .nb-error .no-copy }\nRuntimeError: failed on ranks [0]\n```" in page.markdown
    assert '??? note "Traceback"' in page.markdown
    assert page.problems == []


def test_a_picture_loses_its_ground_and_keeps_the_paper_of_words():
    path = '<g id="{}"><g id="patch_1"><path d="M 0 0" style="fill: #ffffff"/></g></g>'
    ground, axes, words = (path.format(name) for name in ("figure_1", "axes_1", "text_1"))
    assert notebooks.transparent(ground + axes + words) == (ground + axes).replace("#ffffff", "none") + words


@pytest.mark.parametrize(
    ("output", "metadata"),
    [
        (display({"image/png": {"alt": "A [ring]"}}, image_png=PIXEL), {}),
        (display(image_png=PIXEL), {"alt": ["A [ring]"]}),
    ],
)
def test_alt_text(output, metadata):
    page = page_of(code_cell("draw()", output, **metadata))
    assert r"![A \[ring\]](name_files/1-1.png){ .nb-picture loading=lazy }" in page.markdown
    assert page.files == {"name_files/1-1.png": b"\x89PNG"}
    assert page.problems == []


def test_tags():
    assert "secret" not in page_of(code_cell("secret", tags=["remove-cell"])).markdown
    assert "secret" not in page_of(code_cell("secret", stream("open"), tags=["remove-input"])).markdown
    assert "secret" not in page_of(code_cell("open", stream("secret"), tags=["remove-output"])).markdown
    for tag, title in (("solution", "Solution"), ("hide-input", "Code"), ("hide-output", "Output")):
        kind = "note nb-drawn" if title == "Code" else "note"
        assert f'??? {kind} "{title}"' in page_of(code_cell("a", stream("b"), tags=[tag])).markdown


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("text\n- a\n- b\ntext", "text\n\n- a\n- b\ntext"),
        ("- a\n  - b\n  more", "- a\n    - b\n    more"),
        ("text\n$$\nx\n- y\n$$\ntext", "text\n\n$$\nx\n- y\n$$\n\ntext"),
        ("on rank\n0. The loss", "on rank\n0. The loss"),
        ("text\n```\n- a\n$$\n```", "text\n```\n- a\n$$\n```"),
        ("[a\n#12](b)\n# c\n```\n#d\n```", "[a\n\\#12](b)\n# c\n```\n#d\n```"),
        ("<details>\n<summary>S</summary>", "<details markdown>\n<summary>S</summary>"),
    ],
)
def test_markdown_as_jupyter_reads_it(written, read):
    assert notebooks.for_python_markdown(written) == read


# Links


PAGES = {
    "docs/glossary.md": "glossary.md",
    "docs/tutorials/index.md": "tutorials/index.md",
    "tutorials/01_collectives.ipynb": "tutorials/collectives.md",
    "minitrain/collectives/ring.py": "reference/collectives/ring.md",
}


@pytest.mark.parametrize(
    ("path", "page", "written", "read"),
    [
        ("tutorials/00_a.ipynb", "tutorials/a.md", "[x](../docs/glossary.md#ring)", "[x](../glossary.md#ring)"),
        ("docs/index.md", "index.md", "[x](../tutorials/01_collectives.ipynb#s)", "[x](tutorials/collectives.md#s)"),
        (
            "docs/index.md",
            "index.md",
            "[`r`](../minitrain/collectives/ring.py)",
            "[`r`](reference/collectives/ring.md)",
        ),
        ("docs/index.md", "index.md", "[x](../Makefile)", "[x](../Makefile)"),  # for the build to complain about
        ("docs/index.md", "index.md", "[x](https://a.b/c.md), [y](#z)", "[x](https://a.b/c.md), [y](#z)"),
        ("docs/index.md", "index.md", "```\n[x](../docs/glossary.md)\n```", "```\n[x](../docs/glossary.md)\n```"),
    ],
)
def test_links(path, page, written, read):
    assert links.rewrite(written, path, page, PAGES) == read


# Mathematics, chapters, claims


def claim(**changes: object) -> dict:
    given = {"chapter": "collectives", "module": "minitrain.collectives.ring", "what": "bytes <sent>", "formula": "S"}
    given |= {"predicted": 6291456, "measured": 6291456, "unit": "B", "source": "P", "how": "counted", "relation": "="}
    return given | {"holds": True, "note": ""} | changes


def recorded() -> list[dict]:
    file = ROOT / "docs" / "claims.json"
    if not file.exists():
        pytest.skip("the tour has not written docs/claims.json yet")
    return json.loads(file.read_text("utf-8"))["claims"]


def test_anchors_tell_claims_apart_and_stay():
    first, second = (
        claim(what="bytes sent by this rank in a step"),
        claim(what="bytes sent by this rank in a step, S = 4"),
    )
    assert claims_page.anchors([first, second]) == {
        first["what"]: "ring-bytes-sent-by-this-rank-in-a",
        second["what"]: "ring-bytes-sent-by-this-rank-in-a-step",
    }
    assert claims_page.anchors([claim(what="Bytes, sent")]) == {"Bytes, sent": "ring-bytes-sent"}
    for chapter, rows in claims_page.chapters_of({"claims": recorded()}).items():
        found = re.findall(r'<tr class="claim-\w+" id="([^"]+)"', claims_page.page(chapter, rows))
        assert len(found) == len(set(found)) == len(rows), chapter
        assert not set(found) & {row["module"].rpartition(".")[2] for row in rows}, "the headings' anchors"


# Formulas


@pytest.mark.parametrize(
    ("formula", "read"),
    [
        ("(n−1)/n · S", "{n−1 / n}·S"),
        ("V/16hL", "{V / 16hL}"),  # letters that touch bind more tightly than the slash
        ("2k / w(2k + 1)", "{2k / w(2k+1)}"),
        ("M s²/3 (1 ± s/12)", "M {s^2 / 3} (1±{s / 12})"),  # a space ends a side
        ("(t−1) / (6h/w · W/F)", "{t−1 / 6h/w·W/F}"),  # no fraction within a fraction
        ("ln E/10", "ln E/10"),  # of E/10, or a tenth of the logarithm
        ("Σ losses / T", "Σ losses/T"),
        ("max(Σt, a)/m", "{max(Σt,a) / m}"),
        ("1/Φ⁻¹(3/4)", "{1 / Φ^−1(3/4)}"),
        ("√(N/s · (1−1/s))", "√[{N / s}·(1−{1 / s})]"),
        ("γ₂ₘ₋₁ Σ|x||w|", "γ_2m−1 Σ|x||w|"),
        ("2 log2 n", "2 log_2 n"),
        ("2^−(m+1)", "2^−(m+1)"),
        ("Σ log p(xᵢ | x₁ … xᵢ₋₁)", "Σ log p(x_i|x_1 … x_i−1)"),
        ("α' + β'S/(LN)", "α′+{β′S / LN}"),
    ],
)
def test_a_formula_means_what_its_text_means(formula, read):
    assert said(ElementTree.fromstring(f"<f>{formulas.to_html(formula).replace('<wbr>', '')}</f>")) == read


def said(element: ElementTree.Element) -> str:
    """A formula in MathML as one line: fractions in braces, roots in brackets, ^ and _ before exponents and indices."""
    parts = [said(child) for child in element]
    if element.tag == "mfrac":
        return f"{{{parts[0]} / {parts[1]}}}"
    if element.tag == "msubsup":
        return f"{parts[0]}_{parts[1]}^{parts[2]}"
    if element.tag in ("msub", "msup"):
        return parts[0] + ("" if parts[1] in "′*" else "_" if element.tag == "msub" else "^") + parts[1]
    if element.tag == "msqrt":
        return f"√[{''.join(parts)}]"
    if element.tag == "mspace":
        return " "
    return (element.text or "") + "".join(part + (child.tail or "") for part, child in zip(parts, element, strict=True))


def test_formulas_of_the_claims_are_understood():
    every = {claim["formula"] for claim in recorded()}
    left = []
    for formula in every:
        try:
            html = formulas.to_html(formula)
        except ValueError:
            left.append(formula)
            continue
        root = ElementTree.fromstring(f"<f>{html.replace('<wbr>', '')}</f>")
        # No sign is lost on the way, apart from brackets that a fraction, a root or an exponent makes needless.
        text = re.sub(r"[\s(){}/]", "", "".join(root.itertext()))
        written = formula.translate(str.maketrans(dict(formulas.HIGH | formulas.LOW, **{"'": "′"})))
        plain = re.sub(r"[\s(){}/_^√]", "", written)
        assert text.replace("'", "′") == plain, formula
    assert len(left) <= len(every) / 10, left


# Where claims come from


def test_papers():
    table = papers.read(ROOT / "docs" / "papers.toml")
    cited = papers.linked("Rajbhandari et al. 2020, §7.2; Kingma & Ba 2015", table)
    assert 'href="https://arxiv.org/abs/1910.02054"' in cited and ">Kingma &amp; Ba 2015</a>" in cited
    assert cited.count("<a ") == 2 and "</a>, §7.2; <a" in cited
    assert "2006.09503" in papers.linked("Narayanan et al. 2021, 2BW, §3.1", table)
    assert "2104.04473" in papers.linked("Narayanan et al. 2021, §2.2", table)
    assert papers.linked("derived", table) == "derived"
    sources = "; ".join(claim["source"] for claim in recorded())
    for paper in table:
        assert paper.cite in sources, f"no claim cites {paper.cite}"
        assert re.match(r"https://(arxiv\.org/abs/\d{4}\.\d{4,5}$|doi\.org/10\.|[\w.-]+/)", paper.url)


def test_every_source_of_a_claim_can_be_read():
    """What is no reference: our own derivations and choices, and what follows in words after a linked one."""
    table = papers.read(ROOT / "docs" / "papers.toml")
    for source in {claim["source"] for claim in recorded()} - {""}:
        first = source.split("; ")[0]
        assert re.match("derived|heuristic|our choice", first) or "<a " in papers.linked(first, table), source


def test_papers_are_those_of_the_notebooks():
    """A paper that a notebook links under the same authors and year has the same address in the table."""
    text = " ".join(
        "".join(cell["source"])
        for file in sorted((ROOT / "tutorials").glob("*.ipynb"))
        for cell in json.loads(file.read_text("utf-8"))["cells"]
    )
    links_of = dict(re.findall(r"(\w+ et al\. \d{4}), \[[^\]]+\]\((https://[^)\s]+)\)", " ".join(text.split())))
    table = papers.read(ROOT / "docs" / "papers.toml")
    several = {"Narayanan et al. 2021", "Jiang et al. 2024"}  # two papers each
    both = [paper for paper in table if paper.cite in links_of and paper.cite not in several]
    assert len(both) > 40
    assert [paper.cite for paper in both if links_of[paper.cite] != paper.url] == []


def test_a_table_of_claims_in_a_notebook():
    head = "| what | formula | predicted | measured | how | holds |\n| --- | --- | ---: | ---: | --- | --- |\n"
    rows = head + "| bytes \\| B | K_r\\*N | 1\u00a0messages | 2 | counted | NO (fails on rank 1) |"
    page = page_of(code_cell("table(x)", display(text_markdown=rows)))
    assert '<tr class="claim-no"><td data-label="Claim">bytes | B</td>' in page.markdown
    assert "K<sub>r</sub>*N" in page.markdown and "1\u00a0message<" in page.markdown
    other = "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert other in page_of(code_cell("x", display(text_markdown=other))).markdown


def test_the_menu_has_the_chapters_numbers_and_names():
    assert (
        chapters.menu_entry("04a_zero") == "04a ZeRO"
        and chapters.menu_entry("10_context_parallel") == "10 Context parallelism"
    )
    tutorials = ROOT / "tutorials"
    for chapter in chapters.CHAPTERS:
        for notebook in chapters.notebooks(chapter, tutorials):
            title = (
                json.loads(notebook.read_text("utf-8"))["cells"][0]["source"][0]
                .removeprefix("# The ")
                .removeprefix("# ")
            )
            named = chapter.title.removeprefix("The ")
            assert title.lower().startswith(named.lower()), f"{notebook.name}: {title!r} is {named!r} in the menu"
    assert "part [a: schedules](x/11a_pipeline_parallel.ipynb)" in chapters.overview(tutorials, "x")


def test_what_needs_the_repositorys_address():
    url = "https://github.com/someone/minitrain/"
    assert repository.edit(url, "docs/index.md") == "https://github.com/someone/minitrain/edit/main/docs/index.md"
    colab, binder = repository.started(url, "tutorials/a.ipynb")
    assert colab.endswith("github/someone/minitrain/blob/main/tutorials/a.ipynb)")
    assert binder.endswith("gh/someone/minitrain/main?urlpath=doc/tree/tutorials/a.ipynb)")
    assert "git clone https://github.com/someone/minitrain.git\ncd minitrain\n" in repository.clone(url)
    cells = [markdown_cell("[a](../docs/b.md#c) [d](01_e.ipynb) [f](https://g.org)"), code_cell("[a](b)")]
    alone = json.loads(repository.standalone(url, "tutorials/00_a.ipynb", json.dumps({"cells": cells})))["cells"]
    host = "https://github.com/someone/minitrain/blob/main"
    assert "".join(alone[0]["source"]) == f"[a]({host}/docs/b.md#c) [d]({host}/tutorials/01_e.ipynb) [f](https://g.org)"
    assert alone[1] == cells[1]
    shown = code_cell("[a](b)", {"data": {"image/svg+xml": "<svg/>", "text/plain": "[picture: a ring]"}})
    alone = json.loads(repository.standalone("", "x", json.dumps({"cells": [cells[0], shown]})))["cells"]
    assert alone[0] == cells[0] and list(alone[1]["outputs"][0]["data"]) == ["text/plain"]
    assert repository.edit("", "x") is None and repository.clone(None) == ""
    assert repository.started("", "x") == repository.started("https://example.org/a/b", "x") == []


def test_the_glossary_has_an_index_of_every_word_in_bold():
    import glossary

    page = glossary.with_index(
        "<!-- site:index -->\n\n- **Ring**: a circle.\n- **all-Reduce**: a sum, by a **Ring**.\n"
    )
    first, second, *_ = page.splitlines()
    assert first == "- **A** · [all-Reduce](#word-all-reduce)" and second == "- **R** · [Ring](#word-ring)"
    assert page.count("**Ring**{ #word-ring }") == 1 and "by a **Ring**." in page


def test_reports_of_gpus_are_shown_as_they_were_sent(tmp_path):
    assert "No report has been sent in yet" in reports.overview(tmp_path)
    about = {"gpus": 8, "gpu": "NVIDIA H100 80GB HBM3", "torch": "2.13.0", "nccl": "2.28", "minitrain": "v1"}
    outcomes = {
        "ring": first_hour.Outcome(seconds=3.0, figures={"GB/s": 312.5}),
        "fp16": first_hour.Outcome(surprise="it ended with status 1"),
        "slurm": first_hour.Outcome(left_out="there is no sbatch"),
    }
    rows = [{"step": name, "command": f"python -m {name}"} | asdict(each) for name, each in outcomes.items()]
    (tmp_path / "2027-01-31.json").write_text(json.dumps({"about": about, "steps": rows}))
    shown = reports.overview(tmp_path)
    assert shown.startswith(
        "## 2027-01-31: 8 × NVIDIA H100 80GB HBM3\n\n1 of 2 steps as expected. torch 2.13.0, nccl 2.28;"
    )
    for row in ("| yes | GB/s 312.5 |", "| it ended with status 1 |  |", "| left out: there is no sbatch |  |"):
        assert row in shown
    about["gpu"] = "second device"
    (tmp_path / "2027-02-01.json").write_text(json.dumps({"about": about, "steps": []}))
    with pytest.raises(ValueError, match="2027-02-01.json is of the second device"):
        reports.overview(tmp_path)


def test_every_lift_is_on_its_page_with_what_it_changes():
    folder = ROOT / "docs" / "lift"
    page = (ROOT / "docs" / "lift.md").read_text("utf-8")
    places = lift.places(folder)
    assert {*re.findall("<!-- site:(.*?) -->", page)} == {*places}
    assert {*lift.TITLES} == {file.stem for file in folder.glob("*.py")} - {"llama", "one_device"}
    for name in lift.TITLES:
        base = lift.code(folder, lift.STEP_FROM.get(name, "one_device"))
        changes = [line for line in lift.difference(folder, name) if line[0] in "+-"]
        kept = Counter(base) - Counter(line[1:] for line in changes if line[0] == "-")
        assert kept + Counter(line[1:] for line in changes if line[0] == "+") == Counter(lift.code(folder, name))


def test_lines_of_a_lift_are_counted():
    """By hand: the ranks, the model, its part of the batch, synchronize, norm, step, zero_grad, two of the log."""
    assert lift.added(ROOT / "docs" / "lift", "zero3") == (9, 3)
