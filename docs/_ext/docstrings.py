"""Docstrings are plain text with `names` in backticks; Sphinx reads reStructuredText. This stands between them."""

import re

import ergodrift

NAME = re.compile(r"`([^`\n]+)`")
PAGE = re.compile(r"docs/([\w/]+)\.md")
SPECIAL = re.compile(r"(?<!\\)([*|\\]|(?<=\w)_(?=\W|$))")  # |x|, a * b, x_: mathematics here, markup there


def link(match: re.Match[str]) -> str:
    """A public name leads to its page, anything else is code."""
    name = match[1].removeprefix("ed.").removeprefix("ergodrift.")
    plain = name.split("(")[0]
    if plain in ergodrift.__all__ and plain not in ("metrics", "theory"):
        return f":py:obj:`{match[1]} <ergodrift.{plain}>`"
    return f"``{match[1]}``"


def prose(line: str) -> str:
    """One line, with what is special in reStructuredText escaped outside code."""
    parts, end = [], 0
    for match in NAME.finditer(line):
        parts += [SPECIAL.sub(r"\\\1", line[end : match.start()]), link(match)]
        end = match.end()
    return PAGE.sub(r":doc:`/\1`", "".join([*parts, SPECIAL.sub(r"\\\1", line[end:])]))


def process(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Before napoleon: examples are left as they are, and what is set off by four blanks is a formula."""
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", "; ", 1)  # else napoleon takes what stands before the colon for a type
    example = False
    for i, line in enumerate(lines):
        example = line.lstrip().startswith((">>>", "...")) or (example and bool(line.strip()))
        if not example:
            lines[i] = prose(line)
    lines[:] = formulas(lines)


def formulas(lines: list[str]) -> list[str]:
    """Paragraphs that are indented by four beyond the one before become literal blocks."""
    out: list[str] = []
    depth, inside = 0, False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        blank_before = i > 0 and not lines[i - 1].strip()
        if line.strip() and not inside and blank_before and indent >= depth + 4 and not line.lstrip().startswith(">>>"):
            out += [" " * depth + "::", ""]
            inside = True
        elif line.strip() and inside and indent <= depth:
            inside = False
        if line.strip() and not inside:
            depth = indent
        out.append(re.sub(r"\\([*|\\_])", r"\1", line) if inside else line)
    return out


def signature(app: object, what: str, name: str, obj: object, options: object, given: str, returned: str) -> object:
    """Names of types stay names."""
    return tuple(re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", part) if part else part for part in (given, returned))


def skip(app: object, what: str, name: str, obj: object, skipped: bool, options: object) -> bool | None:
    """Fields of named tuples are told by their class; nobody learns from "alias for field number 0"."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field") else None


def resolve(app, env, node, contnode):
    """Annotations know a class by the module it stands in; readers know it by its public name."""
    target = node.get("reftarget", "")
    public = "ergodrift." + target.rsplit(".", 1)[-1]
    if not target.startswith("ergodrift.") or target == public:
        return None
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], public, node, contnode
    )


def setup(app) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
