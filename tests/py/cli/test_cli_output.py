"""What reaches a terminal of names and other texts that anybody may have chosen."""

from __future__ import annotations

import sys
import unicodedata

from cli_support import USAGE, run

import cableway as cw


def test_no_character_that_is_invisible_reaches_a_terminal() -> None:
    """All of Unicode's control and format characters and its blanks; and what is to be read stays as it is."""
    odd = [
        chr(point)
        for point in range(1, sys.maxunicode + 1)
        if unicodedata.category(chr(point)) in ("Cc", "Cf", "Zl", "Zp", "Zs") and point != 0x20
    ]
    odd += [*"\u034f\u115f\u1160\u17b4\u3164\ufe00\ufe0f\uffa0", "\U000e0100", "\U000e01ef"]
    assert len(odd) > 200
    for begin in range(0, len(odd), 100):
        part = odd[begin : begin + 100]
        said = run("no|such|" + "|".join(part), expect=USAGE).stderr
        shown = [part[i] for i in range(len(part)) if part[i] in said.rstrip("\n")]
        assert not shown, [hex(ord(character)) for character in shown]
    kept = "naïve 名前 имя שם नाम 😀 e\u0301"
    assert kept in run(kept, expect=USAGE).stderr


def test_a_soft_hyphen_in_a_name_is_seen() -> None:
    cw.put("soft\u00adhyphen", [1])
    try:
        assert "soft\\xc2\\xadhyphen" in run("ls", "soft").stdout
        assert "soft\\xc2\\xadhyphen" in run("top", "--once").stdout
    finally:
        cw.remove("soft\u00adhyphen")
