"""Options that several commands have, declared once: a dataclass with a field per option.

    @app.command("search")
    @with_groups
    def search(topics: Topics, selection: Selection) -> None: ...

The fields of `Selection` are options of `search`, which gets them as one value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints


# Any: values of the options, of several types
def with_groups(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of a dataclass are replaced by the fields, in their place. Raises
    TypeError for an option that stands in it twice.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _parameters(hints[name])
        else:
            default = parameter.default
            parameters.append(_parameter(name, default, hints[name]))
    names = [parameter.name for parameter in parameters]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"{function.__name__} has {', '.join(sorted(twice))} twice")

    @wraps(function)
    def command(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        function(**values, **made)

    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(group: type[Any]) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield _parameter(field.name, default, hints[field.name])


def _parameter(name: str, default: object, annotation: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
