"""What an error advises is true for what happened: not guessed from an errno or exit code that has several causes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Script, stop_broker
from sandbox import PIDFD_OPEN, refusing

import cableway as cw

CONNECT = "import cableway as cw; print(cw.names())"


def said_without_pidfd(error: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT],
        capture_output=True, text=True, check=False, timeout=60, preexec_fn=refusing(PIDFD_OPEN, error),
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr


def test_a_sandbox_that_forbids_pidfds_is_named_and_an_old_kernel_only_where_it_may_be_one():
    cw.put("hints", 1)
    for error in (errno.EPERM, errno.EACCES):
        said = said_without_pidfd(error)
        assert "seccomp" in said and "5.3" not in said, said
    said = said_without_pidfd(errno.ENOSYS)
    assert "5.3" in said and "seccomp" in said, said
    said = said_without_pidfd(errno.ENFILE)
    assert "fs.file-max" in said and "5.3" not in said and "LimitExceeded" in said, said


def test_who_has_no_descriptor_left_is_told_the_limit_whichever_call_it_meets(script: Script):
    """A connection takes several descriptors one after the other: each may be the one that is not there."""
    cw.put("hints", 1)
    done = script(
        """
        import os, resource
        import cableway as cw

        cw.LimitExceeded
        for left in range(12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            taken = []
            while True:
                try:
                    taken.append(os.dup(0))
                except OSError:
                    break
            for fd in taken[:left]:
                os.close(fd)
            try:
                cw.names()
                print("works", left)
                break
            except cw.Error as error:
                print(type(error).__name__, "5.3" in str(error), "mode 700" in str(error), error)
            for fd in taken[left:]:
                os.close(fd)
        """
    )
    *refused, works = done.stdout.splitlines()
    assert works.startswith("works") and len(refused) >= 3, done
    for line in refused:
        assert line.startswith("LimitExceeded False False") and "ulimit -n" in line, done


def test_a_name_that_is_imported_late_says_which_limit_was_met_and_comes_when_it_is_raised(
    script: Script,
):
    done = script(
        """
        import os, resource
        import cableway as cw

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        taken = []
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        try:
            cw.Queue
        except cw.LimitExceeded as error:
            told = str(error)
        for fd in taken:
            os.close(fd)
        assert "cableway.Queue" in told and "may open 64 files" in told and "ulimit -n" in told, told
        assert cw.Queue.__name__ == "Queue"
        """
    )
    assert done.returncode == 0


def test_a_broker_starts_though_its_starter_has_hardly_a_descriptor_left(
    script: Script, tmp_path: Path
):
    """The process that becomes the broker closes the others' first."""
    done = script(
        """
        import os, resource, sys
        import cableway as cw

        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
        cw.LimitExceeded
        for left in range(16):
            taken = []
            while True:
                try:
                    taken.append(os.dup(0))
                except OSError:
                    break
            for fd in taken[len(taken) - left:]:
                os.close(fd)
            try:
                cw.names()
                print("works", left)
                break
            except cw.LimitExceeded as error:
                assert "may open 300 files" in str(error) and "ulimit -n" in str(error), error
                print("refused", left)
            for fd in taken[: len(taken) - left]:
                os.close(fd)
        """,
        env={**os.environ, "CABLEWAY_DIR": str(tmp_path / "none-yet")},
    )
    *refused, works = done.stdout.splitlines()
    assert works.startswith("works") and len(refused) >= 3, done
    stop_broker(tmp_path / "none-yet")


GUARDED = """
import sys
import cableway as cw

def double(x):
    return 2 * x

if __name__ == "__main__":
    with cw.Pool(1, context=sys.argv[1]) as pool:
        print(pool.map(double, [1, 2]))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_on_stdin_is_told_that_it_has_no_file_and_not_of_a_guard(
    method: str, tmp_path: Path
):
    done = subprocess.run(
        [sys.executable, "-", method],
        input=GUARDED, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "<stdin>" in last and "file" in last and "__name__" not in last, done.stderr


def test_a_main_module_that_raises_in_a_worker_is_named(tmp_path: Path):
    path = tmp_path / "raises.py"
    path.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys
            import cableway as cw

            if __name__ == "__main__":
                pool = cw.Pool(1, context="spawn")
                pool.map(abs, [-1])
            else:
                raise RuntimeError("not here")
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and str(path) in last and "must not raise" in last, done.stderr


def test_a_worker_that_is_killed_at_its_start_says_nothing_of_main(tmp_path: Path):
    path = tmp_path / "killed.py"
    path.write_text(
        textwrap.dedent(
            """
            import os, signal
            import cableway as cw

            if __name__ == "__main__":
                pool = cw.Pool(1, context="spawn")
                pool.map(abs, [-1])
            else:
                os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "__name__" not in last and "SIGKILL" in last, done.stderr


def test_a_module_that_was_not_imported_is_named_with_its_import(script: Script):
    done = script(
        """
        import cableway as cw

        for name in ("cupy", "joblib", "numba", "safetensors", "torch"):
            try:
                getattr(cw, name)
            except AttributeError as error:
                print(str(error).endswith(f"`import cableway.{name}`"))
        from cableway import safetensors
        import cableway.joblib
        print(cw.safetensors is safetensors, cw.joblib.__name__, hasattr(cw, "torch"), hasattr(cw, "nothing"))
        """
    )
    assert done.stdout.split() == ["True"] * 6 + ["cableway.joblib", "False", "False"], done.stderr


def test_refusals_say_what_to_do_about_names_and_read_only_arrays():
    with pytest.raises(cw.NameNotFound, match=r"at the broker .*`cableway ls --all` lists all"):
        cw.get("nowhere")
    cw.put("hints", [1.0, 2.0])
    with pytest.raises(ValueError, match=r"opened read-only.*open it without readonly.*or write"):
        cw.copy([(cw.get("hints", readonly=True), cw.zeros(2))])
