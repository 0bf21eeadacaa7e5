"""What a command prints, for many who ask at once: it runs at most once at a time, and not again at once.

Owner: the event loop's thread. A look that has begun is ended by itself or by its time limit, whoever has stopped waiting for it.
If the exporter is killed, the command that runs ends by itself: it looks once, and what it prints into is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from cableway._watch import command

__all__ = ["CACHE_SECONDS", "CachedCommand", "CommandFailed"]

CACHE_SECONDS = 0.5  # what is not older is not looked at again
_CHUNK_BYTES = 1 << 16


class CommandFailed(Exception):
    """The command could not be run, or said why not."""


class CachedCommand:
    """One command.

    Args:
        arguments: of the `cableway` command.
        made: makes of what was printed, of stderr and of the exit code what is shown; a ValueError of it is a CommandFailed.
    """

    def __init__(
        self, arguments: tuple[str, ...], made: Callable[[bytes, str, int], bytes]
    ) -> None:
        self._arguments = arguments
        self._made = made
        self._task: asyncio.Task[bytes] | None = None
        self._ended = 0.0
        self.begun = 0  # so many

    async def get(self) -> bytes:
        """What is shown: as it is now, or was at most CACHE_SECONDS ago.

        Raises:
            CommandFailed: those who ask within CACHE_SECONDS get the same failure.
        """
        loop = asyncio.get_running_loop()
        task = self._task
        if task is None or (task.done() and loop.time() - self._ended >= CACHE_SECONDS):
            task = self._task = loop.create_task(self._look())
            task.add_done_callback(self._note)
        # Who goes away meanwhile must not end it for the others.
        return await asyncio.shield(task)

    def _note(self, task: asyncio.Task[bytes]) -> None:
        self._ended = asyncio.get_running_loop().time()
        if not task.cancelled():
            task.exception()  # seen, also if all who waited have gone

    async def _look(self) -> bytes:
        self.begun += 1
        name = f"`cableway {self._arguments[0]}`"
        try:
            process = await asyncio.create_subprocess_exec(
                *command.words(*self._arguments),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise CommandFailed(f"{name} cannot be run: {error}") from None
        try:
            printed, errors, code = await asyncio.wait_for(
                _output(process), command.TIMEOUT_SECONDS
            )
            return self._made(printed, command.said(errors), code)
        except asyncio.TimeoutError:
            raise CommandFailed(
                f"{name} did not end within {command.TIMEOUT_SECONDS:g} s"
            ) from None
        except ValueError as error:
            raise CommandFailed(f"{name} failed: {error}") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def _output(process: Any) -> tuple[bytes, bytes, int]:
    printed, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr))
    return printed, errors, await process.wait()


async def _read(stream: asyncio.StreamReader) -> bytes:
    text = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        text += chunk
        if len(text) > command.OUTPUT_MAX_BYTES:
            raise ValueError(f"it printed more than {command.OUTPUT_MAX_BYTES} bytes")
    return bytes(text)
