"""Tests that names and values from files cannot control a terminal, a log or a table, nor fill a page."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from splatscope.app.engine.event_log import EventLog
from splatscope.app.terminal import Terminal, say, warn
from splatscope.assets.checks.checkup import Finding
from splatscope.kernels.errors import InputError, NoRoomError
from splatscope.kernels.wording import printable
from splatscope.viewer.figures.tables import write_table

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\r\n\x9b2Jb\u202egnp.exe\u2028[bold]:smile:"
SHOWN = r"a\x1b[31mred\x1b]0;title\x07\r\n\x9b2Jb\u202egnp.exe\u2028[bold]:smile:"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SHOWN),
        (SHOWN, SHOWN),
        ("Größe 3 × 4, 日本語, 👩‍🚀, صورة", "Größe 3 × 4, 日本語, 👩‍🚀, صورة"),
        ("\udcff\ufeff\0", r"\udcff\ufeff\x00"),
        ("/folder/" + 255 * "n", "/folder/" + 255 * "n"),
        ("lacks " + 5000 * "n" + ".", "lacks " + 100 * "n" + "…" + 98 * "n" + "."),
    ],
)
def test_a_text_is_one_line_without_controls_and_names_are_as_long_as_names_can_be(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.parametrize("name", ["n " * 5000, "a/b\\" * 5000, "\x1b" * 5000])
def test_no_text_is_longer_than_a_paragraph_and_its_end_says_what_to_do(name: str) -> None:
    text = printable(f"The file lacks {name}; export it again.")
    assert len(text) <= 2000
    assert text.startswith("The file lacks ")
    assert text.endswith("; export it again.")
    assert printable(text) == text


def test_whatever_speaks_to_people_speaks_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert str(InputError(HOSTILE)) == str(NoRoomError(HOSTILE)) == SHOWN
    assert Finding("missing", HOSTILE).text == SHOWN
    journal = EventLog()
    journal.add("warning", HOSTILE)
    assert journal.lines[0].text == SHOWN
    Terminal().print(HOSTILE)
    say([HOSTILE, "second"])
    warn([HOSTILE])
    out, err = capsys.readouterr()
    assert out == f"{SHOWN}\n{SHOWN}\nsecond\n"
    assert err == f"splatscope: warning: {SHOWN}\n"
    table = write_table(tmp_path / "table.csv", ("name", "number"), [(HOSTILE, 3)])
    assert list(csv.reader(io.StringIO(table.read_text("utf-8")))) == [["name", "number"], [SHOWN, "3"]]
