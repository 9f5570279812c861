"""What a search that is part of a training reports to."""

from collections.abc import Iterable, Mapping

from controllers.base import Log, Progress


class SearchProgress:
    """Tqdm-like, as `rlflow.search` takes it; passes on to a training's own `log` and `progress`.

    Attributes: steps, of the whole training; done, how many of them were made.
    """

    def __init__(self, steps: int, log: Log | None, progress: Progress | None):
        self.done, self.steps = 0, steps
        self._log, self._progress = log, progress

    def update(self, steps: int) -> None:
        self.done += steps
        if self._progress is not None:
            self._progress(min(self.done, self.steps), self.steps)

    def finish(self) -> None:
        """A search may have enough before its share is used up."""
        self.update(self.steps)

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Nothing: the training's own figures are logged by `log`."""

    def log(self, entries: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """entries: (steps so far, scalars)."""
        if self._log is None:
            return
        for steps, scalars in entries:
            self._log(steps, scalars)
