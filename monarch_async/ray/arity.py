"""What arguments a method takes, small enough to go with every handle: wrong ones are refused where they are given."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Arity(NamedTuple):
    """The parameters of a function, without their types and defaults."""

    names: tuple[str, ...]  #: of those that may be given by position, in order
    required: int  #: so many of the first have no default
    nameless: int  #: so many of the first cannot be given by name
    keywords: frozenset[str]  #: of those given by name only
    needed: frozenset[str]  #: which of these have no default
    takes_more: bool  #: there is ``*args``
    takes_names: bool  #: there is ``**kwargs``

    def check(self, what: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise TypeError where they do not fit; ``what`` names the function."""
        count = len(args)
        if not kwargs and not self.needed and self.required <= count <= len(self.names):
            return
        if count > len(self.names) and not self.takes_more:
            raise TypeError(f"{what}() takes {len(self.names)} arguments by position, and {count} were given")
        for name in kwargs:
            self._check_name(what, count, name)
        missing = [name for name in self.names[count : self.required] if name not in kwargs]
        missing += sorted(self.needed.difference(kwargs))
        if missing:
            raise TypeError(f"{what}() misses a required argument: {', '.join(map(repr, missing))}")

    def _check_name(self, what: str, count: int, name: str) -> None:
        if name in self.names[self.nameless :]:
            if self.names.index(name) < count:
                raise TypeError(f"{what}() got multiple values for argument {name!r}")
        elif name not in self.keywords and not self.takes_names:
            raise TypeError(f"{what}() got an unexpected keyword argument {name!r}")


def arity_of(function: Callable[..., object], is_bound: bool) -> Arity | None:
    """Return what a function takes; None: nobody knows. ``is_bound``: its first argument is given already."""
    kinds = inspect.Parameter
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if not is_bound and parameters and parameters[0].kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
        del parameters[0]
    places = [each for each in parameters if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = [each for each in parameters if each.kind is kinds.KEYWORD_ONLY]
    return Arity(
        names=tuple([each.name for each in places]),
        required=sum([each.default is kinds.empty for each in places]),
        nameless=sum([each.kind is kinds.POSITIONAL_ONLY for each in places]),
        keywords=frozenset([each.name for each in named]),
        needed=frozenset([each.name for each in named if each.default is kinds.empty]),
        takes_more=any(each.kind is kinds.VAR_POSITIONAL for each in parameters),
        takes_names=any(each.kind is kinds.VAR_KEYWORD for each in parameters),
    )
