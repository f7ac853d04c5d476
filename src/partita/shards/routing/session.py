"""ORM sessions bound to a key: get_bind() returns the routed, validated connection.

A session connects at its first statement, validates in each transaction and releases the connection
at the end of the transaction. Rule: the map and the key alone determine the connection, so `bind=`
and similar options are refused.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, Self, TypeVar, overload

from sqlalchemy import URL, Connection, UpdateBase, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm import scoped_session as sqlalchemy_scoped_session

from partita.errors import TransactionUseError
from partita.shards.routing import router
from partita.shards.routing.router import RoutedMap, RoutingOptions, Validate

S = TypeVar("S", bound=Session)
A = TypeVar("A", bound=AsyncSession)

_REFUSED = ("bind", "binds", "twophase", "join_transaction_mode", "sync_session_class")


class RoutedSession(Session):
    """A session of one sharding key; `shard_map.sessionmaker()(key)` creates it."""

    def __init__(  # noqa: PLR0913 - options by name
        self,
        shard_map: RoutedMap | None = None,
        key: Any = None,
        *,
        validate: Validate = "always",
        isolation_level: str | None = None,
        check_keys: bool = True,
        writes: bool = False,
        credentials: URL | str | None = None,
        keyfunc: Callable[[], Any] | None = None,
        is_async: bool = False,
        **options: Any,
    ) -> None:
        _refuse(options)
        if shard_map is None:
            raise _bind_refused("a session without a shard map")
        super().__init__(join_transaction_mode="control_fully", **options)
        self.shard_map = shard_map
        self.key = key
        login = router.login_of(credentials)
        self._options = RoutingOptions(validate, isolation_level, check_keys, writes, login)
        self._keyfunc = keyfunc
        self._is_async = is_async
        self._connection: Connection | None = None
        """The validated connection of the current transaction: set by get_bind(), cleared at the
        end of the outermost transaction."""
        self._adopted: Connection | None = None
        self._closes_adopted = False
        self._is_committing = False
        """Whether a COMMIT has been sent and not answered."""
        self.has_committed = False
        """Whether a transaction of this session has committed; savepoints do not count."""

    @classmethod
    def adopt(
        cls,
        shard_map: RoutedMap,
        connection: Connection,
        *,
        close_connection: bool = False,
        **options: Any,
    ) -> Self:
        """Return a session on a connection that `shard_map.connect(key)` returned.

        The session ends the transactions of the connection, and closes it if `close_connection`.
        """
        session = cls(shard_map, _routed_key(shard_map, connection), **options)
        session._use(connection, close_connection=close_connection)
        return session

    def _use(self, connection: Connection, *, close_connection: bool) -> None:
        self._adopted = connection
        self._closes_adopted = close_connection

    def get_bind(
        self,
        mapper: Any = None,  # noqa: ARG002 - as SQLAlchemy has it
        *,
        clause: Any = None,
        bind: Any = None,
        **_named: Any,
    ) -> Connection:
        """Return the validated connection; route if the transaction has none yet."""
        if bind is not None:
            raise _bind_refused("bind=")
        connection = self._connection
        if connection is None:
            is_writing = self._flushing or isinstance(clause, UpdateBase)
            connection = self._connection = self._route(is_writing=is_writing)
        return connection

    def connection(
        self,
        bind_arguments: Any = None,
        execution_options: Mapping[str, Any] | None = None,
    ) -> Connection:
        """Return the validated connection, in the session's transaction."""
        if bind_arguments and bind_arguments.get("bind") is not None:
            raise _bind_refused("bind=")
        return super().connection(bind_arguments, execution_options)

    def close(self) -> None:
        super().close()
        if self._closes_adopted and self._adopted is not None:
            self._adopted.close()

    def is_in_doubt(self, error: BaseException) -> bool:
        """Return whether, after `error`, the outcome of the last commit is unknown."""
        if not self._is_committing or not isinstance(error, DBAPIError):
            return False
        return error.connection_invalidated and error.statement is None

    def _route(self, *, is_writing: bool) -> Connection:
        if self._adopted is not None:
            if not self._adopted.in_transaction():
                self._adopted.begin()
            return self._adopted
        if self._keyfunc is not None and self._keyfunc() != self.key:
            raise TransactionUseError(
                "SessionKeyChanged",
                "The key of the scope is not the key that its session was created with.",
                facts={"map": self.shard_map.name},
                hint="Call remove() on the scoped session before the key of the scope changes.",
            )
        options = self._options._replace(writes=True) if is_writing else self._options
        return router.route(self.shard_map, self.key, options, is_async=self._is_async)

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection is not self._adopted:
            connection.close()


@event.listens_for(RoutedSession, "after_transaction_end")
def _release_at_end(session: RoutedSession, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session._release()  # noqa: SLF001 - the session's own listener


@event.listens_for(RoutedSession, "before_commit")
def _commit_begins(session: RoutedSession) -> None:
    session._is_committing = True  # noqa: SLF001 - the session's own listener


@event.listens_for(RoutedSession, "after_commit")
def _commit_ends(session: RoutedSession) -> None:
    session._is_committing = False  # noqa: SLF001 - the session's own listener
    session.has_committed = session.has_committed or not session.in_nested_transaction()


class RoutedSessionmaker(Generic[S]):
    """A factory of sessions: `Session = tenants.sessionmaker()`, then `Session(key)`.

    Accepts the options of SQLAlchemy's sessionmaker except those that choose a connection.
    """

    def __init__(
        self,
        shard_map: RoutedMap,
        *,
        class_: type[S] = RoutedSession,  # type: ignore[assignment]
        **options: Any,
    ) -> None:
        _check_options(options)
        self.shard_map = shard_map
        self.class_: Any = _routed_class(class_)
        self.options = options

    def __call__(self, key: Any, **options: Any) -> S:
        made: S = self.class_(self.shard_map, key, **{**self.options, **options})
        return made

    @contextmanager
    def begin(self, key: Any) -> Iterator[S]:
        """Open a session and a transaction that is committed at the end of the block."""
        with self(key) as session, session.begin():
            yield session

    def configure(self, **options: Any) -> None:
        """Change the options of sessions made from now on."""
        _check_options(options)
        self.options.update(options)

    def adopt(self, connection: Connection, *, close_connection: bool = False, **options: Any) -> S:
        """Return a session on a connection that `shard_map.connect(key)` returned."""
        given = {**self.options, **options}
        made: S = self.class_.adopt(
            self.shard_map, connection, close_connection=close_connection, **given
        )
        return made


class AsyncRoutedSessionmaker(Generic[A]):
    """A factory of async sessions: `Session = tenants.async_sessionmaker()`."""

    def __init__(
        self,
        shard_map: RoutedMap,
        *,
        class_: type[A] = AsyncSession,  # type: ignore[assignment]
        **options: Any,
    ) -> None:
        _check_options(options)
        self.shard_map = shard_map
        self.class_ = class_
        self._sync_class = _routed_class(class_.sync_session_class)
        self.options = options

    def __call__(self, key: Any, **options: Any) -> A:
        _refuse(options)
        return self.class_(
            sync_session_class=self._sync_class,
            shard_map=self.shard_map,
            key=key,
            is_async=True,
            **{**self.options, **options},
        )

    @asynccontextmanager
    async def begin(self, key: Any) -> AsyncIterator[A]:
        """Open a session and a transaction that is committed at the end of the block."""
        async with self(key) as session, session.begin():
            yield session

    def configure(self, **options: Any) -> None:
        """Change the options of sessions made from now on."""
        _check_options(options)
        self.options.update(options)

    def adopt(
        self, connection: AsyncConnection, *, close_connection: bool = False, **options: Any
    ) -> A:
        """Return a session on a connection that `shard_map.aconnect(key)` returned.

        The session ends the transactions of the connection, and closes it if `close_connection`.
        """
        routed = connection.sync_connection
        if routed is None:
            raise _bind_refused("a connection that was not opened")
        session = self(_routed_key(self.shard_map, routed), **options)
        sync_session = session.sync_session
        assert isinstance(sync_session, RoutedSession)
        sync_session._use(routed, close_connection=close_connection)  # noqa: SLF001 - made here
        return session


@overload
def sessionmaker(
    shard_map: RoutedMap, *, class_: type[S], **options: Any
) -> RoutedSessionmaker[S]: ...
@overload
def sessionmaker(shard_map: RoutedMap, **options: Any) -> RoutedSessionmaker[RoutedSession]: ...
def sessionmaker(shard_map: RoutedMap, **options: Any) -> RoutedSessionmaker[Any]:
    """Return a factory of sessions; their class is `class_`, with routing added to it."""
    return RoutedSessionmaker(shard_map, **options)


@overload
def async_sessionmaker(
    shard_map: RoutedMap, *, class_: type[A], **options: Any
) -> AsyncRoutedSessionmaker[A]: ...
@overload
def async_sessionmaker(
    shard_map: RoutedMap, **options: Any
) -> AsyncRoutedSessionmaker[AsyncSession]: ...
def async_sessionmaker(shard_map: RoutedMap, **options: Any) -> AsyncRoutedSessionmaker[Any]:
    """Return a factory of async sessions."""
    return AsyncRoutedSessionmaker(shard_map, **options)


@overload
def begin(
    shard_map: RoutedMap, key: Any, *, class_: type[S], **options: Any
) -> AbstractContextManager[S]: ...
@overload
def begin(
    shard_map: RoutedMap, key: Any, **options: Any
) -> AbstractContextManager[RoutedSession]: ...
def begin(shard_map: RoutedMap, key: Any, **options: Any) -> AbstractContextManager[Any]:
    """Open a session of a key and a transaction that is committed at the end of the block."""
    return sessionmaker(shard_map, **options).begin(key)


@overload
def scoped_session(
    shard_map: RoutedMap,
    scopefunc: Callable[[], Any] | None,
    keyfunc: Callable[[], Any],
    *,
    class_: type[S],
    **options: Any,
) -> sqlalchemy_scoped_session[S]: ...
@overload
def scoped_session(
    shard_map: RoutedMap,
    scopefunc: Callable[[], Any] | None,
    keyfunc: Callable[[], Any],
    **options: Any,
) -> sqlalchemy_scoped_session[RoutedSession]: ...
def scoped_session(
    shard_map: RoutedMap,
    scopefunc: Callable[[], Any] | None,
    keyfunc: Callable[[], Any],
    **options: Any,
) -> sqlalchemy_scoped_session[Any]:
    """Return a registry with one session per scope; `keyfunc()` returns the key of the scope."""
    make = sessionmaker(shard_map, **options)
    return sqlalchemy_scoped_session(
        lambda **given: make(keyfunc(), keyfunc=keyfunc, **given),  # type: ignore[arg-type]
        scopefunc=scopefunc,
    )


def _routed_class(class_: type[Session]) -> type[RoutedSession]:
    if issubclass(class_, RoutedSession):
        return class_
    if class_ is Session:
        return RoutedSession
    return type(f"Routed{class_.__name__}", (RoutedSession, class_), {})


def _routed_key(shard_map: RoutedMap, connection: Connection) -> Any:
    """Return the key of a connection of this map; refuse any other connection."""
    entry = router.entry_of(connection)
    if entry is None:
        raise _bind_refused("a connection that was not routed")
    if entry.mapping.map_name != shard_map.name:
        raise _bind_refused("a connection of another shard map")
    return entry.key


def _check_options(options: dict[str, Any]) -> None:
    _refuse(options)
    router.check_validate(options.get("validate", "always"))


def _refuse(options: dict[str, Any]) -> None:
    for name in _REFUSED:
        if options.pop(name, None) is not None:
            raise _bind_refused(name + "=")


def _bind_refused(what: str) -> TransactionUseError:
    return TransactionUseError(
        "BindRefused",
        f"A routed session does not accept {what}: map and key determine its connection.",
        hint="Pass the key: map.sessionmaker()(key). Use adopt() for a connection of "
        "map.connect(key), and shard.connect() to work without routing.",
    )
