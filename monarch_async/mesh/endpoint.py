"""Endpoints of a mesh, and their adverbs: how a call is spread, and what comes back.

    call        every member; all results, as a `ValueMesh`
    call_one    the only member; its result
    choose      the member with the fewest calls from here in flight; its result
    stream      every member; (point, result) as they finish; for async generators (point, item)
    stream_one  the only member; the items of an async generator
    broadcast   every member; no results; failures go to supervision

Replying adverbs send when they are called and return a future. Arguments are checked against the endpoint's signature
and pickled before anything is sent. All raise Backpressure, at once and having sent nothing, where 16 windows of calls
(``window_calls`` each) wait for a member already.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from monarch_async.errors import BadCall
from monarch_async.mesh.stream import ItemSource, MergedSource, ResultSource, Stream
from monarch_async.mesh.value_mesh import ValueMesh
from monarch_async.ranks import Point
from monarch_async.runtime.actor import EndpointSpec
from monarch_async.runtime.call import Broadcast, Call, MeshCall
from monarch_async.runtime.context import current_context
from monarch_async.runtime.path import Path
from monarch_async.runtime.router import Router
from monarch_async.wire.frame import EAGER, GATHERED, SHARES, STREAMED, WANTS_REPLY
from monarch_async.wire.message import CallFields, pack_call_fields
from monarch_async.wire.payload import Encoded, Ticketed, dumps_call

if TYPE_CHECKING:
    import asyncio

    from monarch_async.mesh.actor_mesh import ActorMesh

_ADVERBS = ".call, .call_one, .choose, .stream or .broadcast"

P = ParamSpec("P")
R = TypeVar("R")


class _Caller:
    """What both kinds of endpoint share: checking and pickling arguments, control fields."""

    def __init__(
        self, mesh: "ActorMesh", spec: EndpointSpec, first_error: bool = False, readonly: bool = False
    ) -> None:
        self._mesh, self._spec, self._first_error, self._readonly = mesh, spec, first_error, readonly
        self._shares = SHARES if readonly else 0
        self._least, self._most = spec.positional
        self._fields = CallFields(spec.name)
        self._control = pack_call_fields(self._fields)
        self._what = f"{mesh.name}.{spec.name}"
        self._turn = 0

    @functools.cached_property
    def _router(self) -> Router:
        return self._mesh.cast.router

    @functools.cached_property
    def _paths(self) -> list[Path]:
        return self._mesh.cast.paths

    def _encode(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Encoded:
        if kwargs or not self._least <= len(args) <= self._most:
            self._spec.check(self._what, args, kwargs)
        return dumps_call(args, kwargs, self._what)

    def _with_chain(self) -> tuple[CallFields, bytes]:
        """Return the control fields; inside an endpoint they say who waits."""
        context = current_context()
        if context is None:
            return self._fields, self._control
        fields = self._fields._replace(chain=context.as_parent())
        return fields, pack_call_fields(fields)

    def _call_member(self, path: Path, args: tuple[object, ...], kwargs: dict[str, object]) -> "Call[Any]":
        encoded = self._encode(args, kwargs)
        fields, control = self._with_chain()
        router = self._router
        call: Call[Any] = Call(router, self._what, path)
        call.id = router.register(call)
        call.nbytes = router.post(path, WANTS_REPLY | self._shares, fields, control, encoded, call.id)
        if type(encoded) is Ticketed:
            encoded.sent_to((path.dst,), call.id)
        return call

    def _least_loaded(self) -> int:
        """Return the member with the fewest calls from here unanswered; equals take turns."""
        paths = self._paths
        count = len(paths)
        self._turn = start = (self._turn + 1) % count
        best, best_load = start, paths[start].inflight + len(paths[start].queue)
        for index in range(count):
            path = paths[index]
            load = path.inflight + len(path.queue)
            if load < best_load:
                best, best_load = index, load
        return best

    def __repr__(self) -> str:
        return f"<endpoint {self._what}{self._spec.signature} of {self._mesh.extent or 'one actor'}>"


class Endpoint(_Caller, Generic[P, R]):
    """One endpoint of a mesh. See the module."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Refuse: a mesh wants an adverb. (Inside its own actor an endpoint is called as a plain method.)"""
        raise BadCall(self._what, f"say how: {_ADVERBS}")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{self._what} has no .{name}: say how: {_ADVERBS}")

    def options(self, *, first_error: bool | None = None, readonly: bool | None = None) -> "Endpoint[P, R]":
        """Return the endpoint with other options; those not given stay as they are.

        Args:
            first_error: ``call`` fails at the first error and cancels the other members, instead of gathering all.
            readonly: nobody is going to change the tensors of arguments and results: from 1 MiB on they are not copied
                for each receiver of a machine, who all look at the same pages. (Who changes one all the same gets pages
                of its own as it writes, and nobody else sees it.)
        """
        first_error = self._first_error if first_error is None else first_error
        return Endpoint(self._mesh, self._spec, first_error, self._readonly if readonly is None else readonly)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[ValueMesh[R]]":
        """Call every member. The future's result is the `ValueMesh` of all results.

        It raises `MeshError` where members raised (the exception itself where the mesh has one member, or with
        ``options(first_error=True)``), and `ProcDied` or `HostLost` as soon as a member is lost. The call itself raises
        PicklingError, and Backpressure where a member is very far behind (see the module).
        """
        return self._cast(args, kwargs, None)

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Call the only member; the future's result is its result.

        Raises ExtentError where there are several, Backpressure where it is very far behind.
        """
        paths = self._paths
        if len(paths) != 1:
            self._mesh.require_one(f"{self._what}.call_one")
        return self._call_member(paths[0], args, kwargs)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Call the member with the fewest calls from here in flight. Raises Backpressure where all are far behind."""
        index = self._least_loaded()
        return self._call_member(self._paths[index], args, kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[tuple[Point, R]]:
        """Call every member; iterate over (point, result) as they finish. The first error is raised at its turn.

        Raises Backpressure where a member is very far behind.
        """
        source: ResultSource[R] = ResultSource(self._mesh.extent)
        source.follow(self._cast(args, kwargs, source))
        return Stream(source)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[None]":
        """Call every member, for no result. What they raise goes to supervision.

        Nothing needs to be awaited; awaiting it waits until every member has started the call. Raises Backpressure
        where a member is very far behind.
        """
        encoded = self._encode(args, kwargs)
        router, paths = self._router, self._paths
        call = Broadcast(router, self._what, paths)
        call.id = router.register(call)
        call.nbytes = self._send(paths, self._shares, self._fields, self._control, encoded, call.id)
        return call

    def _cast(self, args: Any, kwargs: Any, stream: "ResultSource[R] | None") -> MeshCall[Any]:
        encoded = self._encode(args, kwargs)
        fields, control = self._with_chain()
        router, paths = self._router, self._paths
        build = functools.partial(ValueMesh, self._mesh.extent)
        call: MeshCall[Any] = MeshCall(router, self._what, paths, build, self._first_error)
        call.id = router.register(call)
        flags = WANTS_REPLY | self._shares
        if stream is not None:
            call.on_each = stream.push
            flags |= EAGER
        call.nbytes = self._send(paths, flags, fields, control, encoded, call.id)
        return call

    def _send(
        self, paths: Sequence[Path], flags: int, fields: CallFields, control: bytes, encoded: Encoded, call: int
    ) -> int:
        if type(encoded) is Ticketed:
            encoded.sent_to([path.dst for path in paths], call)
        if len(paths) == 1:
            return self._router.post(paths[0], flags, fields, control, encoded, call)
        if not flags & EAGER:
            flags |= GATHERED
        return self._router.cast(self._mesh.cast, flags, fields, control, encoded, call)


class StreamEndpoint(_Caller, Generic[P, R]):
    """An async-generator endpoint of a mesh."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Refuse: a mesh wants an adverb."""
        raise BadCall(self._what, "it is an async generator: say .stream or .stream_one")

    def options(self, *, readonly: bool) -> "StreamEndpoint[P, R]":
        """Return the endpoint with other options; see `Endpoint.options`."""
        return StreamEndpoint(self._mesh, self._spec, readonly=readonly)

    def stream_one(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """Call the only member; iterate over the items it yields. Raises ExtentError where there are several.

        The generator runs at most the stream's credit ahead (``stream_items`` and ``stream_bytes``). Leaving the loop
        cancels it. Raises Backpressure where the member is very far behind.
        """
        self._mesh.require_one(f"{self._what}.stream_one")
        return Stream(self._open(self._paths[0], self._encode(args, kwargs)))

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """Like `stream_one`, on the member with the fewest calls from here in flight."""
        index = self._least_loaded()
        return Stream(self._open(self._paths[index], self._encode(args, kwargs)))

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[tuple[Point, R]]:
        """Call every member; iterate over (point, item) of all of them as they come, each with its own credit.

        Raises Backpressure where a member is very far behind.
        """
        encoded = self._encode(args, kwargs)
        opened: list[ItemSource[Any]] = []
        try:
            for path in self._paths:
                opened.append(self._open(path, encoded))
        except BaseException:
            for source in opened:  # all or none
                source.abandon()
            raise
        return Stream(MergedSource(list(self._mesh.points()), opened))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Refuse."""
        raise BadCall(f"{self._what}.call", "it is an async generator: say .stream or .stream_one")

    call_one = broadcast = call

    def _open(self, path: Path, encoded: Encoded) -> ItemSource[Any]:
        router = self._router
        config = router.config
        fields, _ = self._with_chain()
        fields = fields._replace(credit=(config.stream_items, config.stream_bytes))
        stream: ItemSource[Any] = ItemSource(router, self._what, path)
        stream.id = router.register(stream)
        flags = WANTS_REPLY | STREAMED | self._shares
        stream.nbytes = router.post(path, flags, fields, pack_call_fields(fields), encoded, stream.id)
        if type(encoded) is Ticketed:
            encoded.sent_to((path.dst,), stream.id)
        return stream
