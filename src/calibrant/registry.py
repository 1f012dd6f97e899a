"""Methods by name: the text `focal(gamma=3)` means `partial(focal, gamma=3)`. One registry for each kind."""

import ast
import functools
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from calibrant._code_digest import code_digest, is_defined_twice, unwrap
from calibrant._text import shorten_repr, to_one_line
from calibrant.types import InputError, MethodName, Range

M = TypeVar("M", bound=Callable[..., Any])
DATA_PARAMETERS = (
    "predictions",
    "logits",
    "labels",
    "weights",
    "warm_start",
    "level",
)  # arguments, never configuration

TITLE_PATTERN = re.compile(r"(?:(?! \(|[,:;$]|\.(?:\s|$)).)*")  # of a docstring, that names


class Registry(Mapping[str, Callable[..., Any]]):
    """The methods of one kind by name; its home package fills it, and so may anybody with `register`.

    A package enrolls its own by entry points of the group `calibrant.KIND`, which are imported when they are asked for.
    """

    def __init__(
        self,
        kind: str,
        home_module: str,
        *,
        extra_modules: tuple[str, ...] = (),
        class_handling: Literal["made", "fitted", "kept"] = "kept",
        parameter_hints: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind  # in the plural: "losses"
        self.home_module, self.extra_modules = home_module, extra_modules  # the modules whose import fills it
        self.class_handling = class_handling  # made with its hyperparameters, replaced by its `fit`, or kept as it is
        self.parameter_hints = parameter_hints or {}  # what is looked for in a method, and where it is
        self._methods: dict[str, Callable[..., Any]] = {}
        self._code_versions: dict[str, str] = {}

    @overload
    def register(self, method: M, name: str | None = None, *, revision: int = 1) -> M: ...
    @overload
    def register(self, method: None = None, name: str | None = None, *, revision: int = 1) -> Callable[[M], M]: ...
    def register(self, method: Any = None, name: str | None = None, *, revision: int = 1) -> Any:
        """Enroll a function or class under its own name or another; usable as a decorator.

        Raise `revision` whenever the results of a built-in method change: networks that were trained by another
        revision are trained again. The user's own methods are known by a digest of their code instead.

        Raises `InputError` if another method has the name.
        """
        if method is None:
            return lambda method: self.register(method, name, revision=revision)
        name = name or str(method.__name__)
        registered = self._methods.get(name)
        if registered is not None and registered is not method:
            if not _is_same_definition(registered, method):
                raise self._name_taken_error(name, registered, _qualified_name(method))
            if _qualified_name(registered) == _qualified_name(method) and is_defined_twice(method):
                raise self._name_taken_error(name, registered, "another definition in the same file")
        self._methods[name] = method
        built_in = is_built_in(method)
        self._code_versions[name] = (
            (f"revision {revision}" if revision > 1 else "") if built_in else code_digest(method)
        )
        return method

    def _name_taken_error(self, name: str, registered: Callable[..., Any], other_place: str) -> InputError:
        text = f"two {self.kind} are called {name!r}: {_qualified_name(registered)} and {other_place}; rename one"
        return InputError(text, code="name_taken")

    def __getitem__(self, name: str) -> Callable[..., Any]:
        self._import_modules()
        if name in self._entry_points and name not in self._loaded_entry_points:
            self._load_entry_point(name)
        return self._methods[name]

    def _load_entry_point(self, name: str) -> None:
        """Import a method that a package enrolls. Raises `InputError` if that fails, or another has the name."""
        entry = self._entry_points[name]
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            method = entry.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {to_one_line(error)}"
            raise InputError(f"{name} of package {package} cannot be imported ({reason})", code="entry_point") from None
        registered = self._methods.get(name)
        if registered is not None and not _is_same_definition(registered, method):
            raise self._name_taken_error(name, registered, f"{entry.value} of package {package}")
        self.register(method, name)
        self._loaded_entry_points.add(name)

    def code(self, name: str) -> str:
        """Return by what the code of a method is known: "" for the first revision of a built-in one."""
        self[name]
        return self._code_versions.get(name, "")

    def __iter__(self) -> Iterator[str]:
        self._import_modules()
        return iter(sorted(self._methods.keys() | self._entry_points.keys(), key=str.lower))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return self is other

    def _import_modules(self) -> None:
        for home in (self.home_module, *self.extra_modules):
            importlib.import_module(home)

    @cached_property
    def _loaded_entry_points(self) -> set[str]:
        return set()

    @cached_property
    def _entry_points(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=f"calibrant.{self.kind.replace(' ', '_')}")}

    def method(self, text: str) -> "Method":
        """Read a method's text: find it, and check its hyperparameters by name, type and range.

        >>> LOSSES.method("foca")
        Traceback (most recent call last):
        calibrant.types.InputError: no 'foca' among losses; did you mean 'focal'?
        >>> LOSSES.method("focal(gama=3)")
        Traceback (most recent call last):
        calibrant.types.InputError: focal has no 'gama'; it has gamma, detach_weight
        """
        name, settings = _parse_call(text)
        try:
            target = self[name]
        except KeyError:
            hint = suggest(name, self)
            raise InputError(f"no {shorten_repr(name)} among {self.kind}; {hint}", code="unknown_method") from None
        return Method(self, name, target, settings)

    def resolve(self, text: str) -> Callable[..., Any]:
        """Find a method and bind its hyperparameters: a function of data, or for a calibrator its fit."""
        return self.method(text).bound_function

    def canonical(self, text: str) -> str:
        """Spell a method out, defaults included: equal meaning, equal text, equal id.

        >>> METRICS.canonical("ece") == METRICS.canonical("ece( bins = 15 )")
        True
        """
        return self.method(text).canonical

    def normalize(self, text: str) -> str:
        """Spell a method as written, in normal form: `focal( gamma = 3.0 )` is `focal(gamma=3)`.

        >>> LOSSES.normalize("focal( gamma = 3.0 )")
        'focal(gamma=3)'
        """
        return self.method(text).text

    def title(self, text: str) -> str:
        """Name a method in words, by the phrase that its docstring begins with; "" of what has none, or is not known.

        >>> LOSSES.title("focal(gamma=3)"), LOSSES.title("mine")
        ('Focal loss', '')
        """
        method = self.get(text.partition("(")[0])
        first_line = (inspect.getdoc(method) or "").partition("\n")[0] if method is not None else ""
        return TITLE_PATTERN.match(first_line)[0].strip() if first_line else ""  # pyright: ignore[reportOptionalSubscript]


class Method:
    """A method with its hyperparameters: what a study, a command or a table calls it, and what it does.

    Equal methods are spelled out alike. Calling it calls `bound`.
    """

    def __init__(self, registry: Registry, name: str, target: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self.registry, self.name, self.target = registry, name, target
        self.function: Callable[..., Any] = target
        if registry.class_handling == "fitted":
            self.function = getattr(target, "fit", target)
        self.settings = check_settings(self.function, settings, name, registry.parameter_hints)

    @property
    def text(self) -> str:
        """As written, in normal form."""
        return format_call(self.name, self.settings)

    @cached_property
    def canonical(self) -> str:
        """Defaults spelled out, but for a `revision` of None: where data come from is not what they are."""
        all_settings = hyperparameters(self.function) | self.settings
        return format_call(
            self.name, {key: value for key, value in all_settings.items() if (key, value) != ("revision", None)}
        )

    @cached_property
    def code(self) -> str:
        """By what its code is known, and that of the methods it names; "" for built-in ones of the first revision."""
        hints = _type_hints(self.function)
        all_settings = hyperparameters(self.function) | self.settings
        nested_codes = [
            method.code for key, value in all_settings.items() for method in nested_methods(value, hints.get(key))
        ]
        return ", ".join(filter(None, [self.registry.code(self.name), *nested_codes]))

    def with_settings(self, **settings: Any) -> "Method":
        """Return the same method with other hyperparameters.

        >>> LOSSES.method("focal").with_settings(gamma=2)
        Method(losses: focal(gamma=2))
        """
        return Method(self.registry, self.name, self.target, {**self.settings, **settings})

    @cached_property
    def bound_function(self) -> Callable[..., Any]:
        """The function of data alone."""
        if isinstance(self.function, type) and self.registry.class_handling == "made":
            return self.function(**self.settings)
        return partial(self.function, **self.settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of data."""
        return self.bound_function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.registry is other.registry and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash((self.registry.kind, self.canonical))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Method({self.registry.kind}: {self.text})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _method_from_text, (self.registry.kind, self.text)


def _method_from_text(kind: str, text: str) -> Method:
    return REGISTRIES[kind].method(text)


LOSSES = Registry(
    "losses",
    "calibrant.losses",
    class_handling="made",
    parameter_hints={
        "alpha": "nn.Criterion({name!r}, binary=True, alpha=0.25) weighs the events of single logits, "
        "nn.Criterion({name!r}, weight=...) classes, and class_balanced(gamma=2) classes by their counts",
        "weight": "nn.Criterion({name!r}, weight=torch.tensor([...])), or class_balanced, which counts",
        "reduction": "nn.Criterion({name!r}, reduction='sum')",
        "ignore_index": "nn.Criterion({name!r}, ignore_index=255)",
        "binary": "nn.Criterion({name!r}, binary=True)",
        "label_smoothing": "cross_entropy(smoothing=0.1)",
    },
)
METRICS = Registry("metrics", "calibrant.metrics", extra_modules=("calibrant.selection",))
CALIBRATORS = Registry("calibrators", "calibrant.calibrators", class_handling="fitted")
DATA_SETS = Registry("data", "calibrant.lab.data")
NETWORKS = Registry("networks", "calibrant.lab.networks")
CORRUPTIONS = Registry("corruptions", "calibrant.lab.data.corruptions")
OOD_SCORES = Registry("scores", "calibrant.metrics.ood")  # by which foreign inputs are told
TRACES = Registry("traces", "calibrant.lab.study.traces")
REGISTRIES: dict[str, Registry] = {
    registry.kind: registry
    for registry in (LOSSES, METRICS, CALIBRATORS, DATA_SETS, NETWORKS, CORRUPTIONS, OOD_SCORES, TRACES)
}


# The user's own


def include(sources: Iterable[str]) -> None:
    """Import Python files (`mine.py`) or packages (`mypackage`), whose methods register themselves.

    Runs them, as `python mine.py` would: name only what you trust. The same source is imported once. They find modules
    in the folder of a file, and packages in the current folder, after all that is installed, so that none of these can
    stand for another. The current folder stays what it was. Raises `InputError` if there is no such file or package, or
    if it fails.
    """
    for source in sources:
        path = Path(source)
        name = path.stem if source.endswith(".py") else source
        identity = str(path.resolve()) if source.endswith(".py") else source
        if identity in INCLUDED_SOURCES:
            continue
        if source.endswith(".py") and not path.is_file():
            raise InputError(f"--with {_shorten_source(source)}: no such file", code="no_file")
        working_folder, folder = Path.cwd(), str(path.resolve().parent if source.endswith(".py") else Path.cwd())
        if folder not in sys.path:
            sys.path.append(folder)
        try:
            if source.endswith(".py"):
                _import_file(name, path)
            else:
                importlib.import_module(name)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {to_one_line(error)}"
            raise InputError(
                f"--with {_shorten_source(source)}: it cannot be imported ({reason})", code="import"
            ) from None
        finally:
            os.chdir(working_folder)
        INCLUDED_SOURCES.append(identity)


def _shorten_source(source: str) -> str:
    return shorten_repr(source, 200)[1:-1]


class _UncachedLoader(SourceFileLoader):
    """Compiles what stands in the file: cached bytecode may be that of a version of the same size and second."""

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


INCLUDED_SOURCES: list[str] = []  # for processes that start later, which include the same


def _import_file(name: str, path: Path) -> None:
    loaded_file = getattr(sys.modules.get(name), "__file__", None)
    if loaded_file is not None and Path(loaded_file).resolve() == path.resolve():
        return
    if name in sys.modules:
        raise InputError(f"--with {path}: a module {name!r} exists already; rename the file", code="module_exists")
    spec = importlib.util.spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path.resolve())))
    if spec is None or spec.loader is None:
        raise InputError(f"--with {path}: not a Python file", code="not_python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


# Texts


def format_call(name: str, kwargs: Mapping[str, Any]) -> str:
    """Write a name with its arguments; whole floats without their `.0`."""
    arguments = ", ".join(f"{key}={_format_literal(value)}" for key, value in kwargs.items())
    return f"{name}({arguments})" if arguments else name


def suggest(name: str, names: Iterable[str]) -> str:
    """Say what was meant, or what there is.

    >>> suggest("eze", ["ece", "nll"])
    "did you mean 'ece'?"
    """
    names = list(names)
    names_by_lowercase = {word.lower(): word for word in names}
    close_matches = get_close_matches(name.lower(), names_by_lowercase, n=1)
    return (
        f"did you mean {names_by_lowercase[close_matches[0]]!r}?"
        if close_matches
        else f"there are {', '.join(sorted(names)) or 'none'}"
    )


def hyperparameters(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only parameters of a loss, metric, calibrator's fit or class, with their defaults."""
    return {name: p.default for name, p in _parameters(method).items()}


def _parameters(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in DATA_PARAMETERS}


_cached_parameters = functools.lru_cache(maxsize=1024)(_parameters)


def _format_literal(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_format_literal, value))  # pyright: ignore[reportUnknownArgumentType]
        return f"({inside},)" if len(value) == 1 else f"({inside})"  # pyright: ignore[reportUnknownArgumentType]
    return repr(value)


def _parse_call(text: str) -> tuple[str, dict[str, Any]]:
    problem = InputError(f"expected name or name(key=value, ...), got {shorten_repr(text)}", code="method_text")
    try:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                pass
            case ast.Name(id=name):
                keywords = []
            case _:
                raise problem
        names = [keyword.arg for keyword in keywords]
        if None in names or len(set(names)) < len(names):
            raise problem
        return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise problem from None


# Hyperparameters

_INT64_LIMIT = 1 << 63  # whole numbers that every library takes lie below


def check_settings(
    method: Callable[..., Any],
    settings: Mapping[str, Any],
    name: str = "",
    parameter_hints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the hyperparameters in the method's own order and types, each held against its annotation.

    A `Literal` has its words, `Annotated[float, Range(...)]` its range; 3 and 3.0 are one number where the method
    wants a float. Raises `InputError` for a name, type, word or number that it does not take; `elsewhere` says of
    names where they do belong.
    """
    name = name or getattr(method, "__name__", "it")
    parameters = _cached_parameters(method)
    for key in settings.keys() - parameters.keys():
        hint = f"; see {parameter_hints[key].format(name=name)}" if parameter_hints and key in parameter_hints else ""
        parameters_text = ", ".join(parameters) or "no parameters"
        raise InputError(f"{name} has no {shorten_repr(key)}; it has {parameters_text}{hint}", code="unknown_setting")
    hints = _type_hints(method)
    checked_settings: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if key in settings:
            value = _match_default_type(parameter.default, settings[key])
            value = _ints_to_floats(value, hints.get(key))
            if key in hints and (expected := describe_mismatch(value, hints[key])):
                raise InputError(f"{name}: {key} must be {expected}, got {shorten_repr(value)}", code="setting_range")
            try:
                nested_methods(value, hints.get(key))
            except InputError as error:
                raise InputError(f"{name}: {key}: {error}", code=error.code) from None
            checked_settings[key] = value
        elif parameter.default is parameter.empty:
            raise InputError(f"{name} needs {key}, which has no default: say {name}({key}=...)", code="missing_setting")
    return checked_settings


@functools.lru_cache(maxsize=1024)
def _type_hints(method: Callable[..., Any]) -> dict[str, Any]:
    source: Any = method.__init__ if isinstance(method, type) else method  # pyright: ignore[reportUnknownMemberType]
    source = inspect.unwrap(getattr(source, "__func__", source))
    try:
        return typing.get_type_hints(source, include_extras=True)
    except (NameError, TypeError):  # annotations that mean nothing here are nobody's promise
        return {}


def nested_methods(value: Any, hint: Any) -> list["Method"]:
    """Return the methods that a hyperparameter names, where its annotation says that it does (`MethodOf`).

    Raises `InputError` for a name that there is not.
    """
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        kinds = [extra.kind for extra in arguments[1:] if isinstance(extra, MethodName)]
        if kinds and value and isinstance(value, str):
            return [REGISTRIES[kinds[0]].method(value)]
        return nested_methods(value, arguments[0])
    if isinstance(value, tuple | list):
        items = [item for item in value if isinstance(item, str | tuple | list)]
        return [method for item in items for part in arguments for method in nested_methods(item, part)]
    return [method for part in arguments for method in nested_methods(value, part)]


def describe_mismatch(value: Any, hint: Any) -> str:
    """Say what a value of this annotation would be, or nothing if this is one; what cannot be judged passes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        ranges = [extra for extra in arguments[1:] if isinstance(extra, Range)]
        is_allowed_infinity = value == math.inf and any(limits.le == math.inf for limits in ranges)
        expected = "" if is_allowed_infinity else describe_mismatch(value, arguments[0])
        if not expected and isinstance(value, int | float) and any(value not in limits for limits in ranges):
            expected = "a number " + " and ".join(map(str, ranges))
        return expected
    if origin is Literal:
        return "" if value in arguments else " or ".join(map(repr, arguments))
    if origin in (types.UnionType, typing.Union):
        mismatches = [describe_mismatch(value, part) for part in arguments]
        return "" if "" in mismatches else " or ".join(dict.fromkeys(mismatches))
    if hint is bool:
        return "" if isinstance(value, bool) else "True or False"
    if hint is int:
        if not isinstance(value, int) or isinstance(value, bool):
            return "a whole number"
        return "" if abs(value) < _INT64_LIMIT else "a whole number of 64 bits"
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_finite_float = isinstance(value, float) and math.isfinite(value)
        return "" if is_number and (abs(value) < _INT64_LIMIT or is_finite_float) else "a finite number"
    if hint is str:
        return "" if isinstance(value, str) else "a text"
    if hint in (None, type(None)):
        return "" if value is None else "None"
    if origin in (tuple, Sequence):
        return _describe_item_mismatch(value, origin, arguments)
    if origin is Callable:
        return "" if callable(value) else "a function"
    if isinstance(hint, type):
        return "" if isinstance(value, hint) else f"a {hint.__name__}"
    return ""


def _ints_to_floats(value: Any, hint: Any) -> Any:
    """Make whole numbers floats where only a float is asked for, inside tuples too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _ints_to_floats(value, arguments[0])
    if origin in (types.UnionType, typing.Union):
        matching_hints = [part for part in arguments if describe_mismatch(value, part) == ""]
        return value if int in matching_hints or not matching_hints else _ints_to_floats(value, matching_hints[0])
    if origin in (tuple, Sequence) and isinstance(value, tuple | list) and not describe_mismatch(value, hint):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        if _are_finite_floats(items, arguments):
            return tuple(items)
        item_hints = arguments if origin is tuple and Ellipsis not in arguments else arguments[:1] * len(items)
        return tuple(_ints_to_floats(item, part) for item, part in zip(items, item_hints))
    return float(value) if hint is float and type(value) is int and abs(value) < _INT64_LIMIT else value


def _describe_item_mismatch(value: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    """The same of a tuple or sequence, item by item."""
    if not isinstance(value, tuple | list):
        return "a tuple"
    items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    if _are_finite_floats(items, arguments):
        return ""
    if origin is tuple and Ellipsis not in arguments:
        if len(items) != len(arguments):
            return f"a tuple of {len(arguments)}"
        pairs = list(zip(items, arguments))
    else:
        pairs = [(item, arguments[0]) for item in items]
    mismatches = [expected for expected in (describe_mismatch(item, hint) for item, hint in pairs) if expected]
    return f"a tuple, each {mismatches[0]}" if mismatches else ""


def _are_finite_floats(items: list[Any], hints: tuple[Any, ...]) -> bool:
    """Whether items, any number of them, are plain floats where such are asked for: a grid may hold thousands."""
    has_any_length = hints in ((float,), (float, Ellipsis))
    return has_any_length and set(map(type, items)) == {float} and all(map(math.isfinite, items))


def _match_default_type(default: Any, value: Any) -> Any:
    """Make whole numbers floats where the default is one: 3 and 3.0 are one configuration, inside tuples too."""
    if (
        isinstance(default, float)
        and isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) < _INT64_LIMIT
    ):
        return float(value)
    if isinstance(default, tuple) and isinstance(value, tuple | list):
        item_default = default[0] if default else None  # pyright: ignore[reportUnknownVariableType]
        return tuple(_match_default_type(item_default, item) for item in value)  # pyright: ignore[reportUnknownArgumentType]
    return value


def is_built_in(method: Callable[..., Any]) -> bool:
    """Say whether a method is of this package."""
    return unwrap(method).__module__.startswith("calibrant.")


def _is_same_definition(first: Callable[..., Any], second: Callable[..., Any]) -> bool:
    """Whether two are one definition, run twice: by the name of its module (a notebook's cell), or of its file."""
    return _qualified_name(first) == _qualified_name(second) or (
        first.__qualname__ == second.__qualname__
        and _source_file(first) is not None
        and _source_file(first) == _source_file(second)
    )


def _source_file(method: Callable[..., Any]) -> str | None:
    try:
        return inspect.getfile(inspect.unwrap(method))
    except TypeError:
        return None


def _qualified_name(method: Callable[..., Any]) -> str:
    return f"{method.__module__}.{getattr(method, '__qualname__', type(method).__qualname__)}"
