"""The house rules see what they are for: each is given a small house that breaks it, and one that does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
if not (TESTS / "tidy.py").exists():
    pytest.skip("no checkout", allow_module_level=True)
sys.path.insert(0, str(TESTS))

import tidy_commits  # noqa: E402
import tidy_folders  # noqa: E402
import tidy_python  # noqa: E402
import tidy_recursion  # noqa: E402
import tidy_words  # noqa: E402

FIRST = "int ping(void);\nint ping(void) {\n    return pong();\n}\n"
SECOND = "static int helped(void) {\n    return ping();\n}\n\nint pong(void) {\n    return helped();\n}\n"


def test_a_recursion_across_files_is_told() -> None:
    told = list(tidy_recursion.recursions({"shm/a.c": FIRST, "shm/b.c": SECOND}))
    assert told == ["shm/a.c: a recursion across shm/a.c, shm/b.c: helped, ping, pong"]


@pytest.mark.parametrize(
    "texts",
    [
        {"shm/a.c": FIRST + "\n" + SECOND},  # within one file
        {"shm/a.c": FIRST, "shm/b.c": SECOND.replace("ping()", "host->ping()")},  # by a pointer
        {"shm/a.c": FIRST, "shm/b.c": SECOND.replace("ping()", '0 /* ping() */ + sizeof "ping()"')},
        {"shm/a.c": FIRST, "shm/b.c": SECOND.replace("int pong", "static int pong")},  # another's own
        {"shm/a.c": FIRST, "tests/b.c": SECOND},
    ],
)  # fmt: skip
def test_what_is_no_recursion_across_files_is_not_told(texts: dict[str, str]) -> None:
    assert list(tidy_recursion.recursions(texts)) == []


@pytest.mark.parametrize("late", [False, True], ids=["at import", "in a function"])
def test_modules_that_import_each_other_are_told(late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(tidy_python, "TOP", tmp_path)
    importing = "    from cableway import one\n"
    second = f"def call():\n{importing}" if late else importing.strip() + "\n"
    texts = {
        "py/cableway/one.py": "from cableway.two import call\n",
        "py/cableway/two.py": second,
    }
    assert len(list(tidy_recursion.recursions(texts))) == 1
    texts["py/cableway/two.py"] = f"if TYPE_CHECKING:\n{importing}"
    assert list(tidy_recursion.recursions(texts)) == []


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("while x: x -= 1", True),
        ("for x in y:\n            if x: z()", True),
        ("for x in y:\n            if x: continue\n            z()", True),
        ("a = [x for x in y if x]", True),
        ("for x in y:\n            z()", False),
        ("for x in y:\n            if x: z()\n            else: w()", False),
        ("a = [x for x in y]", False),
        ("a = call()", False),
    ],
)
def test_loops_in_the_with_of_a_lock_are_told(body: str, told: bool) -> None:
    text = f"def f(self):\n    with self._lock:\n        {body}\n"
    found = list(tidy_python.loops_under_locks({"py/cableway/x.py": text}))
    assert len(found) == told, found
    assert not list(
        tidy_python.loops_under_locks({"py/cableway/x.py": text.replace("_lock", "file")})
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ipc/array/x.c", "int cw_urge_begin(void);\n"),
        ("broker/bridge/x.h", "struct cwb_urge {\n    int x;\n};\n"),
        ("broker/x.c", "#define X 1\nint x = CWD_URGE_MAX;\n"),
        ("py/cableway/_pool/urge.py", '"""X."""\n'),
        ("py/cableway/_pool/x.py", "class UrgeList:\n    pass\n"),
    ],
)
def test_a_private_word_in_a_name_is_told(name: str, text: str) -> None:
    (told,) = tidy_words.private_words({name: text})
    assert "'urge'" in told and "flush" in told and name in told


def test_a_private_word_elsewhere_is_a_word() -> None:
    texts = {
        "broker/x.c": '/* cwd_urge */\nint urge = cwd_call("cwd_urge", broker_urge);\n',
        "py/cableway/x.py": '"""Urge."""\n\nurge = 1\n',
        "tests/x.c": "int cw_urge_begin(void);\n",
    }
    assert list(tidy_words.private_words(texts)) == []


def test_a_new_commit_with_a_long_subject_is_told(tmp_path: Path) -> None:
    def git(*words: str, moment: int) -> None:
        person = {"NAME": "x", "EMAIL": "x@example.org", "DATE": f"{moment} +0000"}
        named = {f"GIT_{who}_{what}": told for who in ("AUTHOR", "COMMITTER") for what, told in person.items()}  # fmt: skip
        subprocess.run(["git", "-C", tmp_path, *words], env=named, check=True)

    since = tidy_commits.SINCE
    git("init", "-q", moment=since)
    for subject, moment in (("o" * 90, since), ("s" * 72, since + 9), ("l" * 73, since + 99)):
        git("commit", "-q", "--allow-empty", "-m", f"{subject}\n\nwhy", moment=moment)
    (told,) = tidy_commits.with_long_subjects(tidy_commits.of(tmp_path))
    assert "73 characters" in told and told.endswith("l" * 73)
    assert list(tidy_commits.of(tmp_path / "none")) == []


NAMES = {"ipc/README.md", "ipc/x.c", "tools/commands/y.c", "tools/README.md", "tools/main.c"}


def page(questions: list[str]) -> str:
    """A page with these answers, numbered."""
    lines = "".join(f"{i}. Where? {answer}\n" for i, answer in enumerate(questions, 1))
    return f"# X\n\n## Twenty questions\n\nWords.\n\n{lines}\n## Next\n\n1. Why? `none`\n"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("`ipc/x.c`, then `tools/main.c`", ""),
        ("`ipc/`", ""),
        ("`ipc/y.c`", "is not there"),
        ("`shm/`", "is not there"),
        ("in the library", "no path"),
        ("`tools/commands/y.c`", "README"),
    ],
)
def test_a_question_is_answered_by_a_path_with_a_page_beside_it(answer: str, what: str) -> None:
    told = list(tidy_folders.questions_without_answers(page([answer] + ["`ipc/x.c`"] * 19), NAMES))
    assert [what in one for one in told] == [True] * bool(what)


def test_there_are_twenty_questions() -> None:
    (told,) = tidy_folders.questions_without_answers(page(["`ipc/x.c`"] * 19), NAMES)
    assert "19 questions" in told
