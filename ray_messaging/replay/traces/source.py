"""Content of a trace file: read, unzipped, decoded as UTF-8; its errors name the line."""

import codecs
import gzip
import zlib
from io import BytesIO
from pathlib import Path

from ray_messaging.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20


class Source:
    """A whole trace file, unzipped.

    `data`: UTF-8 bytes without byte order mark; `text`: the same, decoded; `stem`, `extension`: of the name without
    .gz, the extension in lower case with its dot.

    Raises TraceError if the file cannot be read, is damaged, empty, or not UTF-8.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        inner = path.with_suffix("") if path.suffix.lower() == ".gz" else path
        self.stem, self.extension = inner.stem, inner.suffix.lower()
        try:
            raw = path.read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            raise TraceError(
                f"cannot read the trace {str(path)!r} ({reason}): check the path and its permissions",
                file=str(path),
                line=0,
            ) from error
        # By its first bytes, not by its name: browsers unzip downloads and keep the .gz.
        data = self._unzip(raw) if raw.startswith(GZIP_MAGIC) else raw
        self.data = data.removeprefix(codecs.BOM_UTF8)
        if not self.data.strip():
            raise self.broken(1, "the file is empty: a trace needs one message a line, so download or write it again")
        self.text = self._decode()

    def broken(self, line: int, reason: str) -> TraceError:
        """Build the error for an invalid line (from 1)."""
        return TraceError(f"{self.path.name}:{line}: {reason}", file=str(self.path), line=line)

    def _unzip(self, raw: bytes) -> bytes:
        parts: list[bytes] = []
        with gzip.GzipFile(fileobj=BytesIO(raw)) as stream:
            try:
                # read1 returns the data before the damage, and so the line; read would drop it.
                while part := stream.read1(CHUNK_BYTES):
                    parts.append(part)
            except (OSError, EOFError, zlib.error) as error:
                line = sum(part.count(b"\n") for part in parts) + 1
                raise self.broken(
                    line,
                    f"the gzip data is damaged from about this line on ({error}): download or zip it again",
                ) from error
        return b"".join(parts)

    def _decode(self) -> str:
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            begin = self.data.rfind(b"\n", 0, error.start) + 1
            raise self.broken(
                line,
                f"byte {error.start - begin + 1} of the line, {self.data[error.start]:#04x}, is no UTF-8: "
                "save the file as UTF-8, plain or gzipped",
            ) from error
