"""Lines about the progress of a study, where there is no terminal with a bar."""

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from calibrant._core.text import escape_invisible
from calibrant.lab.study.progress import Progress

LINE_SECONDS = 30.0  # between two lines
MIN_WAIT_SECONDS = 0.01  # between two looks at the clock


def _write_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class ProgressLines:
    """A function of steps that writes a line for every note, failure and finished run, and about every `LINE_SECONDS`.

    Within `repeated`, the last step is written again if nothing has happened for as long, as in a long epoch.
    """

    def __init__(self, write: Callable[[str], object] = _write_to_stderr) -> None:
        self._write = write
        self._last_step: Progress | None = None
        self._step_time = self._line_time = time.monotonic()
        self._lock = threading.Lock()  # steps and repetitions come from different threads

    def __call__(self, step: Progress) -> None:
        """Write the step, if it is due."""
        kind = "" if step.event is None else step.event.kind
        is_note = step.note or kind == "note"
        with self._lock:
            if not step.note:  # notes do not say where the work is
                self._last_step, self._step_time = step, time.monotonic()
            if is_note or kind in ("failed", "done") or self._is_due():
                self._write_line(step.text if is_note else str(step))

    @contextmanager
    def repeated(self) -> Generator[None]:
        """Write the last step again, with the time since, whenever `LINE_SECONDS` pass without a line."""
        ended = threading.Event()
        thread = threading.Thread(target=self._repeat, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _repeat(self, ended: threading.Event) -> None:
        while not ended.wait(max(MIN_WAIT_SECONDS, self._line_time + LINE_SECONDS - time.monotonic())):
            with self._lock:
                if self._is_due():
                    seconds = f"{time.monotonic() - self._step_time:.0f} s"
                    last = self._last_step
                    self._write_line(f"first epoch, for {seconds}" if last is None else f"{last}, {seconds} ago")

    def _is_due(self) -> bool:
        return time.monotonic() - self._line_time >= LINE_SECONDS

    def _write_line(self, line: str) -> None:
        self._write(escape_invisible(line))
        self._line_time = time.monotonic()
