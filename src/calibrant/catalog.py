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

from calibrant._source import code_digest, defined_twice, unwrapped
from calibrant._text import one_line, shorten
from calibrant.types import InputError, MethodOf, Range

M = TypeVar("M", bound=Callable[..., Any])
DATA = ("predictions", "logits", "labels", "weights", "warm_start", "level")  # arguments, never configuration

PHRASE = re.compile(r"(?:(?! \(|[,:;$]|\.(?:\s|$)).)*")  # of a docstring, that names


class Registry(Mapping[str, Callable[..., Any]]):
    """The methods of one kind by name; its home package fills it, and so may anybody with `register`.

    A package enrolls its own by entry points of the group `calibrant.KIND`, which are imported when they are asked for.
    """

    def __init__(
        self,
        kind: str,
        home: str,
        *,
        more: tuple[str, ...] = (),
        a_class_is: Literal["made", "fitted", "kept"] = "kept",
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind  # in the plural: "losses"
        self.home, self.more = home, more  # the modules whose import fills it
        self.a_class_is = a_class_is  # made with its hyperparameters, replaced by its `fit`, or kept as it is
        self.elsewhere = elsewhere or {}  # what is looked for in a method, and where it is
        self._methods: dict[str, Callable[..., Any]] = {}
        self._codes: dict[str, str] = {}

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
        known = self._methods.get(name)
        if known is not None and known is not method:
            if not _same(known, method):
                raise self._taken(name, known, _place(method))
            if _place(known) == _place(method) and defined_twice(method):
                raise self._taken(name, known, "another definition in the same file")
        self._methods[name] = method
        built_in = is_built_in(method)
        self._codes[name] = (f"revision {revision}" if revision > 1 else "") if built_in else code_digest(method)
        return method

    def _taken(self, name: str, known: Callable[..., Any], other: str) -> InputError:
        text = f"two {self.kind} are called {name!r}: {_place(known)} and {other}; rename one"
        return InputError(text, code="name_taken")

    def __getitem__(self, name: str) -> Callable[..., Any]:
        self._fill()
        if name in self._entries and name not in self._loaded:
            self._load(name)
        return self._methods[name]

    def _load(self, name: str) -> None:
        """Import a method that a package enrolls. Raises `InputError` if that fails, or another has the name."""
        entry = self._entries[name]
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            method = entry.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InputError(f"{name} of package {package} cannot be imported ({reason})", code="entry_point") from None
        known = self._methods.get(name)
        if known is not None and not _same(known, method):
            raise self._taken(name, known, f"{entry.value} of package {package}")
        self.register(method, name)
        self._loaded.add(name)

    def code(self, name: str) -> str:
        """Return by what the code of a method is known: "" for the first revision of a built-in one."""
        self[name]
        return self._codes.get(name, "")

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(sorted(self._methods.keys() | self._entries.keys(), key=str.lower))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return self is other

    def _fill(self) -> None:
        for home in (self.home, *self.more):
            importlib.import_module(home)

    @cached_property
    def _loaded(self) -> set[str]:
        return set()

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
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
        name, settings = _parse(text)
        try:
            target = self[name]
        except KeyError:
            hint = suggest(name, self)
            raise InputError(f"no {shorten(name)} among {self.kind}; {hint}", code="unknown_method") from None
        return Method(self, name, target, settings)

    def resolve(self, text: str) -> Callable[..., Any]:
        """Find a method and bind its hyperparameters: a function of data, or for a calibrator its fit."""
        return self.method(text).bound

    def canonical(self, text: str) -> str:
        """Spell a method out, defaults included: equal meaning, equal text, equal id.

        >>> METRICS.canonical("ece") == METRICS.canonical("ece( bins = 15 )")
        True
        """
        return self.method(text).canonical

    def brief(self, text: str) -> str:
        """Spell a method as written, in normal form: `focal( gamma = 3.0 )` is `focal(gamma=3)`.

        >>> LOSSES.brief("focal( gamma = 3.0 )")
        'focal(gamma=3)'
        """
        return self.method(text).text

    def called(self, text: str) -> str:
        """Name a method in words, by the phrase that its docstring begins with; "" of what has none, or is not known.

        >>> LOSSES.called("focal(gamma=3)"), LOSSES.called("mine")
        ('Focal loss', '')
        """
        method = self.get(text.partition("(")[0])
        first = (inspect.getdoc(method) or "").partition("\n")[0] if method is not None else ""
        return PHRASE.match(first)[0].strip() if first else ""  # pyright: ignore[reportOptionalSubscript]


class Method:
    """A method with its hyperparameters: what a study, a command or a table calls it, and what it does.

    Equal methods are spelled out alike. Calling it calls `bound`.
    """

    def __init__(self, registry: Registry, name: str, target: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self.registry, self.name, self.target = registry, name, target
        self.function: Callable[..., Any] = target
        if registry.a_class_is == "fitted":
            self.function = getattr(target, "fit", target)
        self.settings = checked(self.function, settings, name, registry.elsewhere)

    @property
    def text(self) -> str:
        """As written, in normal form."""
        return spell(self.name, self.settings)

    @cached_property
    def canonical(self) -> str:
        """Defaults spelled out, but for a `revision` of None: where data come from is not what they are."""
        every = hyperparameters(self.function) | self.settings
        return spell(self.name, {key: value for key, value in every.items() if (key, value) != ("revision", None)})

    @cached_property
    def code(self) -> str:
        """By what its code is known, and that of the methods it names; "" for built-in ones of the first revision."""
        hints = _hints(self.function)
        every = hyperparameters(self.function) | self.settings
        inner = [method.code for key, value in every.items() for method in nested_methods(value, hints.get(key))]
        return ", ".join(filter(None, [self.registry.code(self.name), *inner]))

    def having(self, **settings: Any) -> "Method":
        """Return the same method with other hyperparameters.

        >>> LOSSES.method("focal").having(gamma=2)
        Method(losses: focal(gamma=2))
        """
        return Method(self.registry, self.name, self.target, {**self.settings, **settings})

    @cached_property
    def bound(self) -> Callable[..., Any]:
        """The function of data alone."""
        if isinstance(self.function, type) and self.registry.a_class_is == "made":
            return self.function(**self.settings)
        return partial(self.function, **self.settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of data."""
        return self.bound(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Method) and self.registry is other.registry and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash((self.registry.kind, self.canonical))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Method({self.registry.kind}: {self.text})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.registry.kind, self.text)


def _again(kind: str, text: str) -> Method:
    return REGISTRIES[kind].method(text)


LOSSES = Registry(
    "losses",
    "calibrant.losses",
    a_class_is="made",
    elsewhere={
        "alpha": "nn.Criterion({name!r}, binary=True, alpha=0.25) weighs the events of single logits, "
        "nn.Criterion({name!r}, weight=...) classes, and class_balanced(gamma=2) classes by their counts",
        "weight": "nn.Criterion({name!r}, weight=torch.tensor([...])), or class_balanced, which counts",
        "reduction": "nn.Criterion({name!r}, reduction='sum')",
        "ignore_index": "nn.Criterion({name!r}, ignore_index=255)",
        "binary": "nn.Criterion({name!r}, binary=True)",
        "label_smoothing": "cross_entropy(smoothing=0.1)",
    },
)
METRICS = Registry("metrics", "calibrant.metrics", more=("calibrant.selection",))
CALIBRATORS = Registry("calibrators", "calibrant.calibrators", a_class_is="fitted")
DATA_SETS = Registry("data", "calibrant.data")
NETWORKS = Registry("networks", "calibrant.networks")
CORRUPTIONS = Registry("corruptions", "calibrant.data.corruptions")
SCORES = Registry("scores", "calibrant.metrics.ood")  # by which foreign inputs are told
TRACES = Registry("traces", "calibrant.study.traces")
REGISTRIES: dict[str, Registry] = {
    registry.kind: registry
    for registry in (LOSSES, METRICS, CALIBRATORS, DATA_SETS, NETWORKS, CORRUPTIONS, SCORES, TRACES)
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
        place = str(path.resolve()) if source.endswith(".py") else source
        if place in INCLUDED:
            continue
        if source.endswith(".py") and not path.is_file():
            raise InputError(f"--with {_cut(source)}: no such file", code="no_file")
        here, folder = Path.cwd(), str(path.resolve().parent if source.endswith(".py") else Path.cwd())
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
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InputError(f"--with {_cut(source)}: it cannot be imported ({reason})", code="import") from None
        finally:
            os.chdir(here)
        INCLUDED.append(place)


def _cut(source: str) -> str:
    return shorten(source, 200)[1:-1]


class _Uncached(SourceFileLoader):
    """Compiles what stands in the file: cached bytecode may be that of a version of the same size and second."""

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


INCLUDED: list[str] = []  # for processes that start later, which include the same


def _import_file(name: str, path: Path) -> None:
    known = getattr(sys.modules.get(name), "__file__", None)
    if known is not None and Path(known).resolve() == path.resolve():
        return
    if name in sys.modules:
        raise InputError(f"--with {path}: a module {name!r} exists already; rename the file", code="module_exists")
    spec = importlib.util.spec_from_file_location(name, path, loader=_Uncached(name, str(path.resolve())))
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


def spell(name: str, kwargs: Mapping[str, Any]) -> str:
    """Write a name with its arguments; whole floats without their `.0`."""
    inside = ", ".join(f"{key}={_literal(value)}" for key, value in kwargs.items())
    return f"{name}({inside})" if inside else name


def suggest(name: str, known: Iterable[str]) -> str:
    """Say what was meant, or what there is.

    >>> suggest("eze", ["ece", "nll"])
    "did you mean 'ece'?"
    """
    known = list(known)
    lower = {word.lower(): word for word in known}
    close = get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[close[0]]!r}?" if close else f"there are {', '.join(sorted(known)) or 'none'}"


def hyperparameters(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only parameters of a loss, metric, calibrator's fit or class, with their defaults."""
    return {name: p.default for name, p in _parameters(method).items()}


def _parameters(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(method).parameters.values()
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in DATA}


_known = functools.lru_cache(maxsize=1024)(_parameters)


def _literal(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_literal, value))  # pyright: ignore[reportUnknownArgumentType]
        return f"({inside},)" if len(value) == 1 else f"({inside})"  # pyright: ignore[reportUnknownArgumentType]
    return repr(value)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    problem = InputError(f"expected name or name(key=value, ...), got {shorten(text)}", code="method_text")
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

_WORD = 1 << 63  # whole numbers that every library takes lie below


def checked(
    method: Callable[..., Any], settings: Mapping[str, Any], name: str = "", elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the hyperparameters in the method's own order and types, each held against its annotation.

    A `Literal` has its words, `Annotated[float, Range(...)]` its range; 3 and 3.0 are one number where the method
    wants a float. Raises `InputError` for a name, type, word or number that it does not take; `elsewhere` says of
    names where they do belong.
    """
    name = name or getattr(method, "__name__", "it")
    known = _known(method)
    for key in settings.keys() - known.keys():
        hint = f"; see {elsewhere[key].format(name=name)}" if elsewhere and key in elsewhere else ""
        there = ", ".join(known) or "no parameters"
        raise InputError(f"{name} has no {shorten(key)}; it has {there}{hint}", code="unknown_setting")
    hints = _hints(method)
    made: dict[str, Any] = {}
    for key, parameter in known.items():
        if key in settings:
            value = _like(parameter.default, settings[key])
            value = _floated(value, hints.get(key))
            if key in hints and (wanted := refusal(value, hints[key])):
                raise InputError(f"{name}: {key} must be {wanted}, got {shorten(value)}", code="setting_range")
            try:
                nested_methods(value, hints.get(key))
            except InputError as error:
                raise InputError(f"{name}: {key}: {error}", code=error.code) from None
            made[key] = value
        elif parameter.default is parameter.empty:
            raise InputError(f"{name} needs {key}, which has no default: say {name}({key}=...)", code="missing_setting")
    return made


@functools.lru_cache(maxsize=1024)
def _hints(method: Callable[..., Any]) -> dict[str, Any]:
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
        kinds = [extra.kind for extra in arguments[1:] if isinstance(extra, MethodOf)]
        if kinds and value and isinstance(value, str):
            return [REGISTRIES[kinds[0]].method(value)]
        return nested_methods(value, arguments[0])
    if isinstance(value, tuple | list):
        items = [item for item in value if isinstance(item, str | tuple | list)]
        return [method for item in items for part in arguments for method in nested_methods(item, part)]
    return [method for part in arguments for method in nested_methods(value, part)]


def refusal(value: Any, hint: Any) -> str:
    """Say what a value of this annotation would be, or nothing if this is one; what cannot be judged passes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        ranges = [extra for extra in arguments[1:] if isinstance(extra, Range)]
        infinite = value == math.inf and any(each.most == math.inf for each in ranges)
        wanted = "" if infinite else refusal(value, arguments[0])
        if not wanted and isinstance(value, int | float) and any(value not in each for each in ranges):
            wanted = "a number " + " and ".join(map(str, ranges))
        return wanted
    if origin is Literal:
        return "" if value in arguments else " or ".join(map(repr, arguments))
    if origin in (types.UnionType, typing.Union):
        refusals = [refusal(value, part) for part in arguments]
        return "" if "" in refusals else " or ".join(dict.fromkeys(refusals))
    if hint is bool:
        return "" if isinstance(value, bool) else "True or False"
    if hint is int:
        if not isinstance(value, int) or isinstance(value, bool):
            return "a whole number"
        return "" if abs(value) < _WORD else "a whole number of 64 bits"
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        large = isinstance(value, float) and math.isfinite(value)
        return "" if number and (abs(value) < _WORD or large) else "a finite number"
    if hint is str:
        return "" if isinstance(value, str) else "a text"
    if hint in (None, type(None)):
        return "" if value is None else "None"
    if origin in (tuple, Sequence):
        return _refused_items(value, origin, arguments)
    if origin is Callable:
        return "" if callable(value) else "a function"
    if isinstance(hint, type):
        return "" if isinstance(value, hint) else f"a {hint.__name__}"
    return ""


def _floated(value: Any, hint: Any) -> Any:
    """Make whole numbers floats where only a float is asked for, inside tuples too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _floated(value, arguments[0])
    if origin in (types.UnionType, typing.Union):
        taken = [part for part in arguments if refusal(value, part) == ""]
        return value if int in taken or not taken else _floated(value, taken[0])
    if origin in (tuple, Sequence) and isinstance(value, tuple | list) and not refusal(value, hint):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        if _plain_floats(items, arguments):
            return tuple(items)
        each = arguments if origin is tuple and Ellipsis not in arguments else arguments[:1] * len(items)
        return tuple(_floated(item, part) for item, part in zip(items, each))
    return float(value) if hint is float and type(value) is int and abs(value) < _WORD else value


def _refused_items(value: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    """The same of a tuple or sequence, item by item."""
    if not isinstance(value, tuple | list):
        return "a tuple"
    items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    if _plain_floats(items, arguments):
        return ""
    if origin is tuple and Ellipsis not in arguments:
        if len(items) != len(arguments):
            return f"a tuple of {len(arguments)}"
        pairs = list(zip(items, arguments))
    else:
        pairs = [(item, arguments[0]) for item in items]
    refused = [wanted for wanted in (refusal(item, hint) for item, hint in pairs) if wanted]
    return f"a tuple, each {refused[0]}" if refused else ""


def _plain_floats(items: list[Any], hints: tuple[Any, ...]) -> bool:
    """Whether items, any number of them, are plain floats where such are asked for: a grid may hold thousands."""
    any_number = hints in ((float,), (float, Ellipsis))
    return any_number and set(map(type, items)) == {float} and all(map(math.isfinite, items))


def _like(default: Any, value: Any) -> Any:
    """Make whole numbers floats where the default is one: 3 and 3.0 are one configuration, inside tuples too."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool) and abs(value) < _WORD:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, tuple | list):
        first = default[0] if default else None  # pyright: ignore[reportUnknownVariableType]
        return tuple(_like(first, item) for item in value)  # pyright: ignore[reportUnknownArgumentType]
    return value


def is_built_in(method: Callable[..., Any]) -> bool:
    """Say whether a method is of this package."""
    return unwrapped(method).__module__.startswith("calibrant.")


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two are one definition, run twice: by the name of its module (a notebook's cell), or of its file."""
    return _place(one) == _place(other) or (
        one.__qualname__ == other.__qualname__ and _file(one) is not None and _file(one) == _file(other)
    )


def _file(method: Callable[..., Any]) -> str | None:
    try:
        return inspect.getfile(inspect.unwrap(method))
    except TypeError:
        return None


def _place(method: Callable[..., Any]) -> str:
    return f"{method.__module__}.{getattr(method, '__qualname__', type(method).__qualname__)}"
