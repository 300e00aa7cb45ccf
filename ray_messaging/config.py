"""Settings: addresses of servers, and limits of a messager."""

import re
import warnings
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, get_args, get_origin
from urllib.parse import unquote, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from ray_messaging.default_limits_and_leases import (
    BODY_BYTES,
    CUT_TIMEOUT_S,
    DEAD_BYTES,
    FRAME_BYTES,
    FRAME_ROWS,
    LEASE_S,
    LOAN_S,
    MAILBOX_BYTES,
    MAILBOX_MESSAGES,
    PAYLOAD_LIMIT,
    RULE_TIMEOUT_S,
    SHARDS,
    TRANSACTION_BYTES,
)
from ray_messaging.errors import ConfigError

_LONGEST_S = 1e9  # the longest duration of a setting, some 30 years, because a server accepts no infinite duration
_INVALID = "the server address (not shown, because it may have a password) is invalid"

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic has no public name for this class


class Setting(NamedTuple):
    """One field of a settings class, described for users."""

    name: str
    kind: str
    default: str
    description: str


class _OurSettings(ModelMetaclass):
    """Metaclass of settings classes. It refuses positional arguments, and hides pydantic's members from `dir`."""

    if not TYPE_CHECKING:  # with this method, type checkers would not check the names and types of the settings

        def __call__(self, *given: object, **fields: object) -> Any:  # noqa: ANN401 - an object of the class
            """Make an object; raise ConfigError for positional arguments.

            The error does not show the arguments, because one of them may be a password.
            """
            if given:
                names = list(self.model_fields)
                raise ConfigError(
                    f"{self.__name__} takes its settings by name, such as {self.__name__}({names[0]}=...). All "
                    f"settings: {', '.join(names)}{self._unnamed}"
                )
            return super().__call__(**fields)

    def __dir__(self) -> list[str]:
        ours = [base for base in self.__mro__ if base not in BaseModel.__mro__]
        return sorted({name for base in ours for name in vars(base) if not name.startswith(("_", "model_"))})


class _Settings(BaseModel, metaclass=_OurSettings):
    """Base of settings classes. It appends a list of a class's fields to the docstring of the class."""

    # With `defer_build`, a process builds no validator for settings that it gets from another process, which has
    # checked them.
    model_config = ConfigDict(defer_build=True)

    _unnamed: ClassVar[str] = ""  # the last words of the error for positional arguments

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:  # noqa: ANN401 - BaseModel's signature
        listed = [f"{each.name} ({each.kind}, {each.default}): {each.description}" for each in settings_of(cls)]
        cls.__doc__ = "\n".join([cls.__doc__ or "", "", *listed])


def settings_of(config: type[BaseModel]) -> Iterator[Setting]:
    """Yield a `Setting` for each field of a settings class. The table in docs/configuration.md is made from them."""
    for name, field in config.model_fields.items():
        default = "required" if field.is_required() else _shown(name, field.default)
        yield Setting(name, _kind(field.annotation), default, field.description or "")


def _kind(annotation: object) -> str:
    """Return a type as people write it: `float | None`, without the limits of the value, and without modules."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(args[0])
    if origin is Literal:
        return " | ".join(map(repr, args))
    if origin in (Union, UnionType):
        return " | ".join(map(_kind, args))
    if annotation is None or annotation is NoneType:
        return "None"
    if annotation is ...:
        return "..."
    name = getattr(origin or annotation, "__name__", str(annotation))
    return f"{name}[{', '.join(map(_kind, args))}]" if args else name


def _shown(name: str, value: object) -> str:
    if value in ("", ()):
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return f"{value / 2**20:g} MiB"
    if name.endswith(("_s", "timeout")):
        return f"{value:g} s"
    return str(value) if name == "port" else f"{value:,}"


def _setting(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401 - a field of any type
    """Build a field from its default and its description, which names the unit of the field's value.

    The table in docs/configuration.md has a row for each field.
    """
    return Field(default, description=description, **limits)


class ServerConfig(_Settings):
    """Base of the addresses of servers. Each kind of server has a class of its own, such as RedisConfig."""

    if TYPE_CHECKING:  # each subclass declares these fields with its own descriptions
        server: str
        port: int
        password: str | None

    def without_passwords(self) -> Self:
        """Return a copy without the passwords."""
        given = [name for name in ("password", "sentinel_password") if getattr(self, name, None) is not None]
        return self.model_copy(update=dict.fromkeys(given)) if given else self


class Steps(_Settings):
    """Settings for steps of simulated time, for `Messaging.start(exp_id, steps=Steps())`.

    Messages that are sent in one step are read in the next step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    _unnamed: ClassVar[str] = ". The number of steps is set by messaging.run(until=...)"

    seed: int = _setting(0, "the seed of the agents' random numbers", ge=-(2**63), lt=2**63)
    wait_for: Literal["all", "senders", "neighbours"] = _setting(
        "all",
        "the groups for which a group waits at the end of a step; 'all': all groups; 'senders': only groups that may "
        "send to it (see messaging.steps.declare); 'neighbours': all groups, but an agent calls a language model as "
        "soon as its neighbours have ended the step before",
    )
    ahead: int = _setting(
        16,
        "with wait_for='neighbours': an agent may call a language model for a step that has not begun, at most this "
        "many steps early",
        ge=1,
        le=64,
    )
    groups: int | None = _setting(
        None, "step 0 waits until this many groups have joined; None: one group is enough", ge=1
    )
    stall_s: PositiveFloat = _setting(
        30.0,
        "seconds for which a group may hold up a step before a logged warning and messaging.health() name the group",
    )
    digest: bool = _setting(
        False, "compute a hash of the messages of each step, by which runs are compared (messaging.steps.digest)"
    )
    seat_timeout_s: PositiveFloat | None = _setting(
        60.0, "seconds for which a step waits for the people who play agents (messaging.seat); None: no limit"
    )
    checkpoint: int | None = _setting(
        None,
        "keep a checkpoint in log_dir, for Messaging.fork, after every n-th step and after the last step; None: keep "
        "none",
        ge=1,
    )

    @model_validator(mode="after")
    def _check_ahead(self) -> Self:
        # The default of `ahead` is allowed with each `wait_for`, because a fork passes all settings of its parent.
        if self.ahead != type(self).model_fields["ahead"].default and self.wait_for != "neighbours":
            raise ValueError(f"ahead={self.ahead} needs wait_for='neighbours'")
        return self


class Price(_Settings):
    """The price of a million tokens of a language model, for `Calls(cost=Price(input="0.15", output="0.60"))`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Decimal = Field(
        description="the price of a million tokens of prompts", ge=0, decimal_places=6, allow_inf_nan=False
    )
    output: Decimal = Field(
        description="the price of a million tokens of answers", ge=0, decimal_places=6, allow_inf_nan=False
    )
    cached: Decimal | None = _setting(
        None,
        "the price of a million tokens of prompts that the server had in its cache; None: as `input`",
        ge=0,
        decimal_places=6,
        allow_inf_nan=False,
    )
    currency: str = _setting("USD", "the currency, in three capital letters", pattern="^[A-Z]{3}$")

    def of(self, given: int, cached: int, output: int) -> int:
        """Return the cost of tokens, in units of 10^-12 of the currency.

        Args: `given` is the number of input tokens, and `cached` the number of those that came from a cache. `output`
        is the number of output tokens.
        """
        from_cache = self.input if self.cached is None else self.cached
        # Prices have up to six decimal places, so this is a whole number.
        return int(((given - cached) * self.input + cached * from_cache + output * self.output).scaleb(6))


class Calls(_Settings):
    """Limits of calls that agents make with `me.remember`, for all groups together: `Messaging.start(calls=Calls())`.

    Each try counts as a call. A call is tried again if it raises a TimeoutError, an error with "Timeout" in the name of
    its class, or an error with the HTTP status 429 or 5xx. The status is looked for in the error's `status_code` and
    `status`, and in the same attributes of its `response`. The pause before the second try is about half a second. Each
    later pause is twice as long as the one before, up to about 30 s.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate_per_minute: PositiveFloat | None = _setting(
        None, "how many calls may begin per minute, at an even pace; None: no limit"
    )
    concurrency: int | None = _setting(None, "most calls at the same time; None: no limit", ge=1)
    retries: int = _setting(0, "how often a call that has failed is tried again, at most", ge=0)
    tokens_per_minute: PositiveFloat | None = _setting(
        None, "how many tokens of prompts and answers may be used per minute, at an even pace; None: no limit"
    )
    budget: int | str | None = _setting(
        None,
        "most calls, or most money such as '5 USD', counted anew in each start of the experiment; once the budget is "
        "spent, the run ends, and keeps the steps that were committed before; None: no limit",
    )
    cost: Price | dict[str, Price] | None = _setting(
        None,
        "one price for all language models, or a dict with a price for each language model; a key of the dict is a "
        "model's name, or the beginning of its name",
    )
    keep_arguments: bool = _setting(True, "keep the arguments of calls in the log's folder, and in the folder `store`")
    store: str | Path | None = _setting(
        None,
        "a folder on this machine that keeps the answers of calls; a call with the same content is made only once, "
        "whichever agent, step, run or process asks; None: no store",
    )

    @property
    def limited(self) -> bool:
        """Return whether there is any limit: on calls per minute, calls at once, tokens per minute, or the budget."""
        limits = self.rate_per_minute, self.concurrency, self.tokens_per_minute, self.budget
        return any(each is not None for each in limits)

    @property
    def needs_usage(self) -> bool:
        """Return whether there is a limit that counts tokens or money, so that each call must report its usage."""
        return self.tokens_per_minute is not None or isinstance(self.budget, str)

    @property
    def currency(self) -> str:
        """Return the currency of the prices in `cost`, or "" if `cost` is not set."""
        prices = [self.cost] if isinstance(self.cost, Price) else [*(self.cost or {}).values()]
        return prices[0].currency if prices else ""

    def price(self, model: str | None, given: int, cached: int, output: int) -> int:
        """Return the cost of tokens of a language model, in units of 10^-12 of the currency.

        Args: `model` is the model's name. `given` is the number of input tokens, of which `cached` came from a cache,
        and `output` the number of output tokens.
        Raises: ConfigError if the model has no price.
        """
        found = self.cost if isinstance(self.cost, Price) else self._price_of(model)
        return found.of(given, cached, output)

    def _price_of(self, model: str | None) -> Price:
        prices = self.cost if isinstance(self.cost, dict) else {}
        names = [name for name in prices if model is not None and model.startswith(name)]
        if not names:
            known = ", ".join(map(repr, prices)) or "no model"
            raise ConfigError(
                f"Calls(cost=) has no price for model {model!r}, only for {known}: add {{{model!r}: Price(...)}}"
            )
        return prices[max(names, key=len)]

    @field_validator("budget")
    @classmethod
    def _checked_budget(cls, budget: int | str | None) -> int | str | None:
        if isinstance(budget, int) and budget < 1:
            raise ValueError("a budget must be at least one call")
        if isinstance(budget, str):
            amount, _, currency = budget.partition(" ")
            if not re.fullmatch(r"[0-9]+(\.[0-9]{1,12})?", amount) or not re.fullmatch("[A-Z]{3}", currency):
                raise ValueError("write a number of calls, or money with its currency, such as budget='5 USD'")
            if not Decimal(amount):
                raise ValueError("a budget must be above 0")
        return budget

    @model_validator(mode="after")
    def _one_currency(self) -> Self:
        prices = [self.cost] if isinstance(self.cost, Price) else [*(self.cost or {}).values()]
        if isinstance(self.cost, dict) and not prices:
            raise ValueError("cost={} has no price: write cost={'MODEL': Price(input=..., output=...)}")
        found = {each.currency for each in prices}
        if isinstance(self.budget, str):
            if not found:
                raise ValueError(f"budget={self.budget!r} needs cost=Price(input=..., output=...)")
            found.add(self.budget[-3:])
        if len(found) > 1:
            raise ValueError(f"budget= and cost= have different currencies, {' and '.join(sorted(found))}: use one")
        return self

    @field_validator("store")
    @classmethod
    def _absolute_store(cls, store: str | Path | None) -> str | None:
        """Return `store` as an absolute path, because the processes of the groups have another working folder."""
        if store is None:
            return None
        if "://" in str(store) or not str(store):
            raise ValueError("store must be the path of a folder on this machine, and neither a URI nor ''")
        return str(Path(store).expanduser().absolute())


def check_calls(calls: object) -> None:
    """Raise ConfigError unless `calls` is None or a `Calls`."""
    if not isinstance(calls, Calls | None):
        raise ConfigError(f"calls={calls!r} is not a Calls object: write calls=Calls(rate_per_minute=600)")


class RedisConfig(ServerConfig):
    """Address of a Redis (or Valkey) server, of Sentinels, or of a cluster; the repr never shows a password."""

    # An error about another field must not print the password.
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)
    _unnamed: ClassVar[str] = ". For a URL use RedisConfig.from_url"

    server: str = _setting("", "the server's host name or address; a path that begins with / is a unix socket")
    port: int = _setting(6379, "the server's TCP port", ge=0, le=65535)
    password: str | None = _setting(None, "the server's password", repr=False)
    db: int = _setting(0, "the number of the database", ge=0)
    timeout: float = _setting(60.0, "seconds that one command may take; see connect_timeout for connecting", gt=0)
    connect_timeout: float = _setting(
        5.0,
        "seconds until a server that does not answer counts as out of reach; 30 for a server that the package starts",
        gt=0,
    )
    username: str | None = _setting(None, "the user's name, if the server has an ACL")
    ssl: bool = _setting(False, "connect by TLS")
    ssl_ca_certs: str | None = _setting(None, "a file of certificate authorities to trust besides the system's")
    ssl_certfile: str | None = _setting(None, "a file with the client's certificate, if the server asks for one")
    ssl_keyfile: str | None = _setting(None, "a file with the private key of the client's certificate")
    allow_eviction: bool = _setting(
        False, "accept a server that deletes data, unread messages too, when its memory is full"
    )
    socket_dir: str | None = _setting(
        None,
        "a folder with the server's unix socket, PORT.sock; if this socket exists, it is used, because it is faster "
        "than TCP",
    )

    sentinels: tuple[str, ...] = _setting((), "the Sentinels' addresses, host:port each, in place of server and port")
    service: str | None = _setting(None, "the name by which the Sentinels know the server, such as mymaster")
    sentinel_username: str | None = _setting(None, "the user's name at the Sentinels, if they have an ACL")
    sentinel_password: str | None = _setting(None, "the password of the Sentinels", repr=False)
    cluster: tuple[str, ...] = _setting(
        (), "addresses of some nodes of a cluster, host:port each, in place of server and port"
    )
    shards: int = _setting(
        1,
        (
            "for a cluster: over how many hash slots the large messages of steps are spread; this number must never "
            "change for an experiment"
        ),
        ge=1,
        le=SHARDS,
    )

    @model_validator(mode="before")
    @classmethod
    def _name_the_unknown(cls, fields: object) -> object:
        # Unknown keys are no error, because AgentSociety's settings files have more keys. They are a warning, so that a
        # typo such as `pasword` is noticed.
        unknown = sorted(map(str, fields.keys() - cls.model_fields.keys())) if isinstance(fields, dict) else []
        if unknown:
            known = ", ".join(cls.model_fields)
            warnings.warn(
                f"RedisConfig has no {', '.join(unknown)}, and ignores it: its fields are {known}", stacklevel=4
            )
        return fields

    @model_validator(mode="after")
    def _is_whole(self) -> "RedisConfig":
        # Without TLS these files would protect nothing.
        if not self.ssl and (self.ssl_ca_certs or self.ssl_certfile or self.ssl_keyfile):
            raise ValueError("ssl_ca_certs, ssl_certfile and ssl_keyfile need ssl=True")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        if self.socket_dir is not None and (self.ssl or self.cluster or self.server.startswith("/")):
            raise ValueError(
                "socket_dir cannot be used with ssl=True, with cluster=, or with a server that is a unix socket: "
                "leave it out"
            )
        if self.port == 0 and not self.server.startswith("/"):
            raise ValueError("no server has the port 0: port= is from 1 to 65535, and 0 only for a unix socket")
        if (bool(self.server), bool(self.sentinels), bool(self.cluster)).count(True) != 1:
            raise ValueError("RedisConfig needs exactly one of server=, sentinels= (with service=) and cluster=")
        if self.cluster and self.db:
            raise ValueError("a cluster has only the database 0: leave db out")
        if self.shards > 1 and not self.cluster:
            raise ValueError("shards= needs cluster=, because shards are spread over the primaries of a cluster")
        if bool(self.sentinels) != bool(self.service):
            raise ValueError(
                "sentinels= and service= must be given together: service is the name in the Sentinels' `sentinel "
                "monitor` line"
            )
        if self.sentinel_password is None and self.sentinel_username is not None:
            raise ValueError("sentinel_username needs sentinel_password")
        self.sentinel_addresses()
        self.cluster_addresses()
        return self

    def sentinel_addresses(self) -> list[tuple[str, int]]:
        """Return the host and port of each Sentinel; raise ValueError if an address is not host:port."""
        return [_address("Sentinel", text, 26379) for text in self.sentinels]

    def cluster_addresses(self) -> list[tuple[str, int]]:
        """Return the host and port of each given cluster node; raise ValueError if an address is not host:port."""
        return [_address("node", text, 6379) for text in self.cluster]

    @classmethod
    def from_url(cls, url: str) -> "RedisConfig":
        """Parse the URL of a server; raise ConfigError if the URL is invalid.

        The URL of one server begins with redis:// or rediss:// (`[user][:password]@host[:port][/db]`), or with unix://
        (`[user][:password]@/path`). With Sentinels the URL begins with redis+sentinel:// or rediss+sentinel://
        (`[user][:password]@host[:port],host[:port],.../service[/db]`). For a cluster the URL begins with
        redis+cluster:// or rediss+cluster:// (`[user][:password]@host[:port],host[:port],...`), and has the addresses
        of some nodes. A scheme that begins with rediss uses TLS.
        Options follow a question mark: allow_eviction=1, db=number, and for a cluster shards=number.
        """
        if url.startswith(("redis+sentinel://", "rediss+sentinel://")):
            return cls._from_sentinel_url(url)
        if url.startswith(("redis+cluster://", "rediss+cluster://")):
            return cls._from_cluster_url(url)
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigError(f"{_INVALID}: write redis://[user:password@]host:port/db") from None
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise ConfigError(
                f"the server address has the scheme {parts.scheme!r}: write redis://host:port/db, "
                "rediss://host:port/db, unix:///path, redis+sentinel:// or redis+cluster://"
            )
        query = _query_of(parts.query)
        if "shards" in query:
            raise ConfigError(
                "the server address has shards=, which needs a cluster: write redis+cluster://host:port,host:port"
            )
        db = query.get("db", "0") if parts.scheme == "unix" else (parts.path.strip("/") or query.get("db", "0"))
        # If a # or ? in the password is not escaped, the rest of the URL is parsed as a fragment or as options. The
        # port -1, which is invalid, then leads to the ConfigError.
        more = parts.fragment or query.keys() - {"db", "allow_eviction"}
        try:
            return cls(
                server=unquote(parts.path) if parts.scheme == "unix" else (parts.hostname or "localhost"),
                port=-1 if more else 0 if parts.scheme == "unix" else 6379 if parts.port is None else parts.port,
                password=unquote(parts.password) if parts.password else None,
                username=unquote(parts.username) if parts.username else None,
                db=int(db),
                ssl=parts.scheme == "rediss",
                allow_eviction=TypeAdapter(bool).validate_strings(query.get("allow_eviction", "0")),
            )
        except (ValidationError, ValueError):
            # The cause is left out, because it would show the password.
            raise ConfigError(
                f"{_INVALID}: write redis://[user:password@]host[:port][/db][?allow_eviction=1], where "
                "port (1 to 65535) and db are numbers, and / @ : ? # in the password are %2F %40 %3A %3F %23"
            ) from None

    @classmethod
    def _from_sentinel_url(cls, url: str) -> "RedisConfig":
        scheme, _, rest = url.partition("+sentinel://")
        at, _, path = rest.partition("/")
        login, at_sign, addresses = at.rpartition("@")
        service, _, more = path.partition("/")
        service, question, query = service.partition("?")
        config = cls.from_url(f"{scheme}://{login}{at_sign}sentinel/{more}{question}{query}")
        fields = {"server": "", "sentinels": tuple(addresses.split(",")), "service": unquote(service)}
        try:
            return cls(**config.model_dump() | fields)
        except ValidationError:
            raise ConfigError(
                f"{_INVALID}: for Sentinels write redis+sentinel://[user:password@]host:port,host:port/service, where "
                "service is the name in the Sentinels' `sentinel monitor` line"
            ) from None

    @classmethod
    def _from_cluster_url(cls, url: str) -> "RedisConfig":
        scheme, _, rest = url.partition("+cluster://")
        rest, question, query = rest.partition("?")
        at, _, more = rest.partition("/")
        login, at_sign, addresses = at.rpartition("@")
        options = _query_of(query)
        shards = options.pop("shards", "1")
        query = "&".join(map("=".join, options.items()))
        config = cls.from_url(f"{scheme}://{login}{at_sign}cluster/{more}{question}{query}")
        fields = {"server": "", "cluster": tuple(addresses.split(",")), "shards": shards}
        try:
            return cls(**config.model_dump() | fields)
        except ValidationError:
            raise ConfigError(
                f"{_INVALID}: for a cluster write redis+cluster://[user:password@]host:port,host:port?shards=8 "
                f"with some of the cluster's nodes, where shards is 1 to {SHARDS}. The only database of a cluster is 0"
            ) from None


class ShardsConfig(ServerConfig):
    """Addresses of the servers of one experiment with steps: the primary, and servers that only store large frames.

    A frame is an encoded batch of messages. A large frame that is not stored on the primary is called a body.

    In a Redis Cluster all servers have the same address, and each has hash slots of its own (see `key_tags`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    servers: tuple[RedisConfig, ...] = Field(min_length=2, description="the servers; their order must never change")
    nodes: tuple[str, ...] = Field((), description="the Ray node of each server; empty: all are on one node")
    home: int | None = Field(
        None,
        description="the index of the server that stores the bodies this process sends; None: all servers in turn",
    )

    body_bytes: int = Field(
        BODY_BYTES,
        ge=64,
        description="a step's frame of at least this size has its body on one of the servers",
    )

    @classmethod
    def of_cluster(cls, config: RedisConfig) -> "ShardsConfig":
        """Make the config of an experiment whose large frames are spread over the primaries of a cluster."""
        return cls(servers=(config,) * config.shards)

    @property
    def server(self) -> str:  # type: ignore[override]
        """Return the address of the primary."""
        return self.servers[0].server

    @property
    def port(self) -> int:  # type: ignore[override]
        """Return the port of the primary."""
        return self.servers[0].port

    @property
    def password(self) -> str | None:  # type: ignore[override]
        """Return the password of the primary."""
        return self.servers[0].password

    def on_node(self, node: str) -> "ShardsConfig":
        """Return a copy of this config for a process on a Ray node.

        If one of the servers is on that node, it stores all large frames that the process sends.
        """
        return self.model_copy(update={"home": self.nodes.index(node) if node in self.nodes else None})

    def without_passwords(self) -> "ShardsConfig":
        """Return a copy without the passwords."""
        return self.model_copy(update={"servers": tuple(each.without_passwords() for each in self.servers)})


def _query_of(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (pair.partition("=") for pair in text.split("&") if pair)}


def _address(kind: str, text: str, port: int) -> tuple[str, int]:
    """Return the host and port of an address; raise ValueError if the text is not of the form host:port."""
    parts = urlsplit(f"//{text}")
    found = port if parts.port is None else parts.port
    if not found:
        raise ValueError(f"the address {text!r} has the port 0, which no {kind} has: write a port from 1 to 65535")
    if not parts.hostname or parts.path or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"the address of a {kind} is host:port, not {text!r}")
    return parts.hostname, found


class MessagingConfig(_Settings):
    """Limits of a messager: sizes in messages or bytes, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mailbox_messages: PositiveInt = _setting(
        MAILBOX_MESSAGES,
        "most unread messages in a mailbox, which holds the messages for one group; senders wait while it is full",
    )
    mailbox_bytes: PositiveInt = _setting(
        MAILBOX_BYTES,
        "most unread bytes in a mailbox, which holds the messages for one group; senders wait while it is full",
    )
    inbox_messages: PositiveInt = _setting(
        100_000,
        "most messages that a receiver reads from the server before your program fetches them; twice as many if the "
        "server is far away",
    )
    outbox_messages: PositiveInt = _setting(
        200_000, "how many messages may wait in a messager to be sent; `send` waits while that many wait"
    )
    outbox_bytes: PositiveInt = _setting(
        256 * 2**20, "how many bytes may wait in a messager to be sent; `send` waits while that many wait"
    )
    payload_bytes: int = _setting(
        8 * 2**20, "most bytes of one payload as JSON; the setting may be up to 64 MiB", gt=0, le=PAYLOAD_LIMIT
    )
    state_bytes: int = _setting(
        64 * 2**20,
        "most bytes of the state that one transaction (messager.transaction) stores; the setting may be up to 256 MiB",
        gt=0,
        le=TRANSACTION_BYTES,
    )
    complete_messages: PositiveInt = _setting(
        1_000_000, "how many messages one fetch with `complete=True` may return; above it FetchTooLarge is raised"
    )
    complete_bytes: PositiveInt = _setting(
        256 * 2**20, "how many bytes one fetch with `complete=True` may return; above it FetchTooLarge is raised"
    )
    frame_rows: PositiveInt = _setting(FRAME_ROWS, "most messages that the server stores together, as one frame")
    frame_bytes: PositiveInt = _setting(FRAME_BYTES, "most bytes that the server stores together, as one frame")
    send_timeout_s: PositiveFloat = _setting(
        30.0,
        "seconds for which a send is retried, with pauses, while the server cannot be reached, a mailbox or the log "
        "is full, or the data of a mailbox were deleted on the server",
    )
    cut_timeout_s: PositiveFloat = _setting(
        CUT_TIMEOUT_S,
        "seconds for which a step waits for a server that it cannot reach, such as during a cut of the network; if "
        "send_timeout_s is longer, the step waits for that time",
    )
    interceptor_timeout_s: PositiveFloat = _setting(
        30.0, "seconds that a send waits for an answer of the interceptor, the actor with the rules"
    )
    rule_timeout_s: PositiveFloat = _setting(
        RULE_TIMEOUT_S,
        "seconds that a rule may take for one batch of messages; then the rule is interrupted, and counts as failed",
        le=_LONGEST_S,
    )
    lease_s: PositiveFloat = _setting(
        LEASE_S, "seconds without a sign of life after which a messager counts as gone", le=_LONGEST_S
    )
    loan_s: PositiveFloat = _setting(
        LOAN_S,
        "seconds that a `Group` object may hold messages that it has fetched; after that the group's next fetch "
        "returns them again",
        le=_LONGEST_S,
    )
    dead_bytes: PositiveInt = _setting(
        DEAD_BYTES,
        "most bytes of dead letters, messages that could not be handled; above it the oldest are dropped, and counted",
    )
    log_list_messages: int = _setting(
        100_000, "most messages that `get_log_list()` of a messager returns; 0: none", ge=0
    )
    log_list_bytes: int = _setting(64 * 2**20, "most bytes that a messager keeps for `get_log_list()`; 0: none", ge=0)
    mirror: bool = _setting(
        False,
        "also PUBLISH each message on its channel, for programs without this library that subscribe to the channel",
    )
    strict_senders: bool | None = _setting(
        None,
        "send only messages from the messager's own agents, or from the user (from_id None); None: True for groups, "
        "False for other messagers",
    )
    strict_answers: bool = _setting(True, "an answer counts only if it comes from the agent that was asked")
    wait_replicas: int = _setting(
        0, "how many replicas of the server must confirm a write before the write is acknowledged; 0: none", ge=0
    )
    delegate_rules: bool = _setting(
        True,
        "let senders themselves apply rules that read only ids; False: the interceptor, the actor with the rules, "
        "judges all messages",
    )


OnExisting = Literal["error", "resume", "reset"]
