"""Checks that every method of a registry passes, in one test per method."""

import inspect
import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

Check = Callable[..., None]


class Contract:
    """Checks of one kind of method, each a function of a method's name, its cases, and what it names of the rest."""

    def __init__(self) -> None:
        self.checks: list[partial[None]] = []

    def holds(self, **cases: Any) -> Callable[[Check], Check]:
        """Add a check in all combinations of its cases."""

        def add(check: Check) -> Check:
            for values in itertools.product(*cases.values()):
                self.checks.append(partial(check, **dict(zip(cases, values))))
            return check

        return add

    def verify(self, name: str, **options: Any) -> None:
        """Run all checks of a method, each from the same random state; a failure names its check and case."""
        for check in self.checks:
            named = inspect.signature(check.func).parameters.keys() & options.keys()
            if torch := sys.modules.get("torch"):
                torch.manual_seed(0)
            try:
                check(name, **{key: options[key] for key in named - check.keywords.keys()})
            except Exception as error:
                error.add_note(f"{check.func.__name__}({name}, {check.keywords})")
                raise
