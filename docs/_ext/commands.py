"""The directive `commands`: the help of every command, asked of the parser itself."""

import argparse
from functools import partial

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from ergodrift import cli


class Commands(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        """Its name, and what `--help` says."""
        parser = cli.build_parser()
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        found: list[nodes.Node] = []
        for name, command in commands.choices.items():
            command.formatter_class = partial(command.formatter_class, width=88)
            section = nodes.section(ids=[name])
            section += nodes.title(text=f"ergodrift {name}")
            text = command.format_help()
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


def setup(app) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
