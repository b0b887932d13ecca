"""Writes llms.txt: what the package is, and for each page its title, its first paragraph and its Markdown source."""

from pathlib import Path

from docutils import nodes

INTRODUCTION = """# ergodrift {version}

> Constrained stochastic optimisation when the data are not i.i.d.: minimise E f(x, xi) over a compact convex set
> subject to E g_i(x, xi) <= 0, with samples from a Markov chain, a time series or a walk over agents. Python on JAX.

Say `import ergodrift as ed`. A problem is `ed.Problem(loss, constraints, domain)`, data are a source such as
`ed.SeriesSource(table)`, `ed.auto(problem, source, x0)` chooses the algorithm, `ed.run` runs it, `result.solution` is
the point, `result.certify(held_out)` says whether the constraints hold on data the run has not seen.
"""


def summary(doctree: nodes.document) -> str:
    """The first paragraph, on one line."""
    first = next((node for node in doctree.findall(nodes.paragraph) if node.astext().strip()), None)
    text = " ".join(first.astext().split()) if first is not None else ""
    return text if len(text) <= 240 else text[:240].rsplit(" ", 1)[0] + " ..."


def write(app, exception: Exception | None) -> None:
    """One section for each top-level entry of the table of contents."""
    if exception or app.builder.format != "html":
        return
    env, lines = app.env, [INTRODUCTION.format(version=app.config.version)]
    for section in env.toctree_includes.get(app.config.root_doc, []):
        lines.append(f"\n## {env.titles[section].astext()}\n")
        for page in [section, *env.toctree_includes.get(section, [])]:
            source = Path(env.doc2path(page, base=False))
            path = f"_sources/{source}.txt" if source.suffix == ".md" else f"{page}.html"
            about = summary(env.get_doctree(page))
            lines.append(f"- [{env.titles[page].astext()}]({path})" + (f": {about}" if about else ""))
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n")


def setup(app) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
