"""What a server is told: where it listens, who may come, and how much."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from brctc.decode import EndpointRules


@dataclass(frozen=True)
class ServeOptions:
    """The defaults are safe: this machine alone, and bounds on everything."""

    models: tuple[str, ...] = ()
    """Directories of runs or models, or NAME=DIRECTORY; the first one is the default."""
    host: str = "127.0.0.1"
    port: int = 8000
    wyoming_port: int | None = None
    """None: Wyoming is not spoken."""
    token: str | None = None
    """What clients have to know."""
    open: bool = False
    """Let clients in without a token from other machines, too."""
    certificate: Path | None = None
    key: Path | None = None
    workers: int = 1
    threads: int = 1
    """Of the model thread."""
    max_streams: int = 100
    """At once, of each process."""
    max_message_bytes: int = 1 << 20
    max_file_bytes: int = 100 << 20
    max_seconds: float = 3600.0
    """Of audio, of a stream or a file."""
    idle_s: float = 30.0
    """A stream without audio is closed after so long."""
    max_results: int = 256
    """Results that wait for a client; one that lags further behind is closed."""
    drain_s: float = 20.0
    """After SIGTERM, streams may go on for so long."""
    window_s: float = 0.010
    """Streams that come within this time are computed together."""
    max_batch: int = 32
    rules: EndpointRules = field(default_factory=EndpointRules)

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("there is no model to serve")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS needs both: --certificate and --key")
        for name in ("workers", "threads", "max_streams", "max_message_bytes", "max_file_bytes", "max_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("max_seconds", "idle_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected more than 0")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token):
            raise ValueError("the token is empty, or has characters that a header cannot have")
        self._check_reach()

    @property
    def loopback(self) -> bool:
        """Whether this machine alone can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def _check_reach(self) -> None:
        """Whoever lets other machines in says how they are known, or that they need not be."""
        if self.loopback or self.open:
            return
        if self.token is None:
            raise ValueError(
                f"{self.host} lets other machines in: give --token-file, or --open if anybody may come"
            )
        if self.wyoming_port is not None:
            raise ValueError(
                f"Wyoming knows no token, and {self.host} lets other machines in: --open allows it"
            )
