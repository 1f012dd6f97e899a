"""The registries of losses, metrics, calibrators and other methods, and methods with hyperparameters.

The settings of a method are its hyperparameters by name. A setting can name another method, such as the base of a
calibrator.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar, overload

from calibrant._core.arguments import check_arguments, describe_argument
from calibrant._core.lazy import import_optional
from calibrant._core.registry._code_digest import code_digest, is_defined_twice, unwrap
from calibrant._core.registry._settings import (
    convert,
    format_call,
    hyperparameters,
    nested_names,
    parse_call,
    setting_types,
    suggest,
)
from calibrant._core.text import describe_error, shorten_repr
from calibrant._core.types import InputError, prefix_errors

__all__ = ["CALIBRATORS", "CORRUPTIONS", "DATA_SETS", "LOSSES", "METRICS", "NETWORKS", "OOD_SCORES", "REGISTRIES"]
__all__ += ["TRACES", "Method", "Registry", "check_settings", "is_built_in"]

M = TypeVar("M", bound=Callable[..., Any])
TITLE_START = re.compile(r"^(?:(?:Apply|Build|Compute|Create|Draw|Load|Return) )?(?:[Tt]he |[Aa]n? )?(?=\w)")
# The text before a bracket, a comma, colon, semicolon or formula, or the end of the first sentence
TITLE_PHRASE = re.compile(r"(?:(?! \(|[,:;$]|\.(?: [^a-z0-9.(]|$)).)*")


class Registry(Mapping[str, Callable[..., Any]]):
    """The methods of one kind by name.

    Importing the home module fills it. Anyone can add methods by `register`, and packages by entry points of the group
    `calibrant.KIND`, which are imported on first use.
    """

    def __init__(
        self,
        kind: str,
        home_module: str,
        *,
        extra_modules: tuple[str, ...] = (),
        class_handling: Literal["made", "fitted", "kept"] = "kept",
        hints: Mapping[str, str] | None = None,
    ) -> None:
        """Create a registry.

        Args:
            kind: Plural noun, such as "losses".
            home_module: Module whose import registers the built-in methods.
            extra_modules: Further such modules.
            class_handling: What a registered class stands for: "made", an instance with the hyperparameters; "fitted",
                its `fit`; "kept", the class.
            hints: Where to find methods and parameters that belong elsewhere, by name.
        """
        self.kind = kind
        self.home_module, self.extra_modules = home_module, extra_modules
        self.class_handling = class_handling
        self.hints = hints or {}
        self._methods: dict[str, Callable[..., Any]] = {}
        self._code_versions: dict[str, str] = {}
        self._loaded_entry_points: set[str] = set()

    @overload
    def register(self, method: M, name: str | None = None, *, revision: int = 1) -> M: ...
    @overload
    def register(self, method: None = None, name: str | None = None, *, revision: int = 1) -> Callable[[M], M]: ...
    def register(self, method: Any = None, name: str | None = None, *, revision: int = 1) -> Any:
        """Register a function or class. Can be used as a decorator.

        Built-in data sets, networks and so on then check their arguments also where they are called as functions.

        Args:
            method: The function or class.
            name: Its name; default: its `__name__`.
            revision: Number to increase whenever the results of a built-in method change: networks trained by another
                revision are trained again. The code of other methods is compared by digest instead.

        Raises:
            InputError: If another method has the name.
        """
        if method is None:
            return lambda method: self.register(method, name, revision=revision)
        name = name or str(method.__name__)
        registered = self._methods.get(name)
        if registered is not method and self.class_handling == "kept" and is_built_in(method):
            method = check_arguments(method) if inspect.isfunction(method) else method
        if registered is not None and registered is not method:
            # A notebook cell that runs again may replace its own method, but a file must not define a name twice
            if not _is_same_definition(registered, method):
                raise self._name_taken_error(name, registered, _qualified_name(method))
            if _qualified_name(registered) == _qualified_name(method) and is_defined_twice(method):
                raise self._name_taken_error(name, registered, "another definition in the same file")
        self._methods[name] = method
        if is_built_in(method):
            self._code_versions[name] = f"revision {revision}" if revision > 1 else ""
        else:
            self._code_versions[name] = code_digest(method)
        return method

    def _name_taken_error(self, name: str, registered: Callable[..., Any], second: str) -> InputError:
        """Return the error for a second method of the same name, which `second` describes."""
        text = f"Expected one method {name!r} among {self.kind}, got {_qualified_name(registered)} and {second}."
        return InputError(f"{text} Try another name.", code="name_taken")

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return a method by name. If another package offers it by an entry point, it is imported first."""
        import_module(self.home_module)
        if name not in self._methods:  # the extra modules take longer to import
            self._import_modules()
        if name in self._entry_points and name not in self._loaded_entry_points:
            self._load_entry_point(name)
        return self._methods[name]

    def _load_entry_point(self, name: str) -> None:
        """Import and register a method that another package offers by an entry point.

        Raises:
            InputError: If the import fails, or another method has the name.
        """
        entry = self._entry_points[name]
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            method = entry.load()
        except Exception as error:
            raise InputError(
                f"{name} of package {package} cannot be imported ({describe_error(error)}).", code="entry_point"
            ) from None
        registered = self._methods.get(name)
        if registered is not None and not _is_same_definition(registered, method):
            raise self._name_taken_error(name, registered, f"{entry.value} of package {package}")
        self.register(method, name)
        self._loaded_entry_points.add(name)

    def code(self, name: str) -> str:
        """Return the version of a method's code, which tells whether earlier results are still valid.

        It is "" for a built-in method in its first revision, "revision 2" and so on in a later one, and a digest of the
        code for any other method.
        """
        self[name]  # registers the method if an entry point offers it
        return self._code_versions.get(name, "")

    def __iter__(self) -> Iterator[str]:
        self._import_modules()
        return iter(sorted(self._methods.keys() | self._entry_points.keys(), key=str.lower))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, value: object) -> bool:
        """Whether this is the same registry: comparing methods, as mappings do, would import all packages."""
        return self is value

    def registered(self) -> list[Callable[..., Any]]:
        """Return the methods that are registered so far. No extra module and no entry point is imported."""
        import_module(self.home_module)
        return list(self._methods.values())

    def _import_modules(self) -> None:
        """Import the modules that register the built-in methods. Extra ones are left out if a package is missing."""
        import_module(self.home_module)
        for module in self.extra_modules:
            with suppress(InputError):
                import_module(module)

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        """The methods that installed packages offer by entry points, by name."""
        return {entry.name: entry for entry in entry_points(group=f"calibrant.{self.kind.replace(' ', '_')}")}

    def method(self, text: str) -> "Method":
        """Parse a method's text and validate its hyperparameters by name, type and range.

        >>> METRICS.method("eces")
        Traceback (most recent call last):
        calibrant.types.InputError: Unknown name 'eces' among metrics: did you mean 'ece'?
        >>> METRICS.method("ece(bin=3)")
        Traceback (most recent call last):
        calibrant.types.InputError: ece: Unknown parameter 'bin'. Try bins, norm, edges.
        """
        name, settings = parse_call(text)
        target = self.get(name)
        if target is None:
            hint = self.hints.get(name) or suggest(name, self)
            raise InputError(f"Unknown name {shorten_repr(name)} among {self.kind}: {hint}", code="unknown_method")
        return Method(self, name, target, settings)

    def resolve(self, text: str) -> Callable[..., Any]:
        """Return a method with its hyperparameters bound: a function of data, or the fit of a calibrator."""
        return self.method(text).bound_function

    def canonical(self, text: str) -> str:
        """Return a method's text with all defaults, equal for equal methods.

        >>> METRICS.canonical("ece") == METRICS.canonical("ece( bins = 15 )")
        True
        """
        return self.method(text).canonical

    def normalize(self, text: str) -> str:
        """Return a method's text with normal spaces and numbers.

        >>> METRICS.normalize("ece( bins = 10 )")
        'ece(bins=10)'
        """
        return self.method(text).text

    def title(self, text: str) -> str:
        """Return a method's title, the first phrase of its docstring without verb and article, or "" if unknown.

        >>> METRICS.title("ece(bins=10)"), METRICS.title("mine")
        ('Expected calibration error', '')
        """
        method = self.get(text.partition("(")[0])
        docstring = "" if method is None else inspect.getdoc(method) or ""
        match = TITLE_PHRASE.match(TITLE_START.sub("", docstring.partition("\n")[0]))
        title = "" if match is None else match[0].strip()
        return title[:1].upper() + title[1:]


class Method:
    """A method with its hyperparameters. Calling it calls `bound_function`.

    Methods are equal if they are the same registry entry with equal hyperparameters.
    """

    def __init__(self, registry: Registry, name: str, target: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self.registry, self.name, self.target = registry, name, target
        is_fitted = registry.class_handling == "fitted"
        self.function: Callable[..., Any] = getattr(target, "fit", target) if is_fitted else target
        self.settings = check_settings(self.function, settings, name, registry.hints)

    @property
    def text(self) -> str:
        """The method as written, with normal spaces and numbers."""
        return format_call(self.name, self.settings)

    @property
    def _all_settings(self) -> dict[str, Any]:
        """All hyperparameters by name, the defaults included."""
        return {**hyperparameters(self.function), **self.settings}

    @cached_property
    def canonical(self) -> str:
        """The text with all defaults, except a `revision` of None: the source of data does not identify them."""
        settings = {key: value for key, value in self._all_settings.items() if (key, value) != ("revision", None)}
        return format_call(self.name, settings)

    @cached_property
    def code(self) -> str:
        """The versions, as in `Registry.code`, of the method's code and of the methods that its settings name."""
        hints = setting_types(self.function)
        named_methods = [m for key, value in self._all_settings.items() for m in _named_methods(value, hints.get(key))]
        return ", ".join(filter(None, [self.registry.code(self.name), *(method.code for method in named_methods)]))

    def with_settings(self, **settings: Any) -> "Method":
        """Return the same method with some other hyperparameters.

        >>> METRICS.method("ece").with_settings(bins=10)
        Method(metrics: ece(bins=10))
        """
        return Method(self.registry, self.name, self.target, {**self.settings, **settings})

    @cached_property
    def bound_function(self) -> Callable[..., Any]:
        """The function of data alone, with the settings bound.

        It is an instance of a registered class if the registry's `class_handling` is "made".
        """
        if isinstance(self.function, type) and self.registry.class_handling == "made":
            return self.function(**self.settings)
        return partial(self.function, **self.settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of data."""
        return self.bound_function(*args, **kwargs)

    def __eq__(self, value: object) -> bool:
        return isinstance(value, Method) and self.registry is value.registry and self.canonical == value.canonical

    def __hash__(self) -> int:
        return hash((self.registry.kind, self.canonical))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Method({self.registry.kind}: {self.text})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text alone: the process that loads it looks the method up in its own registry."""
        return _method_from_text, (self.registry.kind, self.text)


def _method_from_text(kind: str, text: str) -> Method:
    """Return a method from the name of its registry and its text, such as "focal(gamma=3)". Unpickling calls this."""
    return REGISTRIES[kind].method(text)


def _named_methods(value: Any, hint: Any) -> list[Method]:
    """Return the methods that the value of a setting names, such as the base of a calibrator.

    `hint` is the annotation of the setting: a `MethodName` in it tells that texts name methods, and of which kind.
    """
    return [_method_from_text(kind, text) for kind, text in nested_names(value, hint)]


def check_settings(
    method: Callable[..., Any],
    settings: Mapping[str, Any],
    name: str = "",
    parameter_hints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Validate hyperparameters against the annotations of a method, and return them in its order and types.

    `Literal` lists the allowed values, and `Annotated[float, Range(...)]` gives their range. Whole numbers become
    floats where the method takes floats.

    Args:
        method: Function or class.
        settings: Hyperparameters by name.
        name: Name of the method in errors; default: its `__name__`.
        parameter_hints: Hints for parameters that belong elsewhere, by name.

    Raises:
        InputError: For an unknown name, a wrong type or value, or a missing hyperparameter.
    """
    name = name or getattr(method, "__name__", "it")
    defaults = hyperparameters(method)
    for key in settings.keys() - defaults.keys():
        hint = (parameter_hints or {}).get(key, "").format(name=name) or ", ".join(defaults) or "no parameters"
        raise InputError(f"{name}: Unknown parameter {shorten_repr(key)}. Try {hint}.", code="unknown_setting")
    hints = setting_types(method)
    checked: dict[str, Any] = {}
    for key, default in defaults.items():
        if key in settings:
            value = convert(settings[key], hints.get(key), default)
            if key in hints and (mismatch := describe_argument(key, value, hints[key], default)):
                raise InputError(f"{name}: {mismatch}", code="setting_range")
            with prefix_errors(f"{name}: {key}"):
                _named_methods(value, hints.get(key))  # only raises, for a wrong name or setting
            checked[key] = value
        elif default is inspect.Parameter.empty:
            raise InputError(f"{name}: Expected a value of {key}. Try {name}({key}=...).", code="missing_setting")
    return checked


def import_module(name: str) -> Any:
    """Import a module of this package. Raise `InputError` if it needs torch, which is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return import_optional("torch", "torch", f"{name}")


def is_built_in(method: Callable[..., Any]) -> bool:
    """Whether a method belongs to this package."""
    return unwrap(method).__module__.startswith("calibrant.")


def _is_same_definition(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Whether two functions or classes may come from one definition that was run twice, as a notebook's cell can be.

    They may if they have the same qualified name in one module, or in one file that was imported as two modules.
    """
    if _qualified_name(first) == _qualified_name(second):
        return True
    file = _source_file(first)
    return first.__qualname__ == second.__qualname__ and file is not None and file == _source_file(second)


def _source_file(method: Callable[..., Any]) -> str | None:
    """Return the file in which a function or class is defined, None if there is none, as for built-in functions."""
    try:
        return inspect.getfile(inspect.unwrap(method))
    except TypeError:
        return None


def _qualified_name(method: Callable[..., Any]) -> str:
    """Return the module and name of a function or class, such as "calibrant.losses.focal"."""
    return f"{method.__module__}.{getattr(method, '__qualname__', type(method).__qualname__)}"


LOSSES = Registry(
    "losses",
    "calibrant.losses",
    class_handling="made",
    hints={
        "alpha": "nn.Criterion({name!r}, binary=True, alpha=0.25) to weight the events of single logits, "
        "nn.Criterion({name!r}, weight=...) to weight classes, or class_balanced(gamma=2) to weight them by count",
        "weight": "nn.Criterion({name!r}, weight=torch.tensor([...])), or class_balanced, which counts",
        "reduction": "nn.Criterion({name!r}, reduction='sum')",
        "ignore_index": "nn.Criterion({name!r}, ignore_index=255)",
        "binary": "nn.Criterion({name!r}, binary=True)",
        "label_smoothing": "cross_entropy(smoothing=0.1)",
    },
)
METRICS = Registry("metrics", "calibrant.metrics", extra_modules=("calibrant.nn.selection",))
CALIBRATORS = Registry(
    "calibrators",
    "calibrant.calibrators",
    class_handling="fitted",
    hints={
        "MultiCalibrated": "it is fitted to features. Try subgroups.MultiCalibrated.fit(predictions, features).",
    },
)
DATA_SETS = Registry("data", "calibrant.lab.data")
NETWORKS = Registry("networks", "calibrant.lab.networks")
CORRUPTIONS = Registry("corruptions", "calibrant.lab.data.corruptions")
OOD_SCORES = Registry("scores", "calibrant.metrics.ood")  # of out-of-distribution detection
TRACES = Registry("traces", "calibrant.lab.study.traces")
REGISTRIES: dict[str, Registry] = {
    registry.kind: registry
    for registry in (LOSSES, METRICS, CALIBRATORS, DATA_SETS, NETWORKS, CORRUPTIONS, OOD_SCORES, TRACES)
}
