"""A clock of its own for a server's process, which a test steps while the server runs."""

import mmap
import struct
import subprocess
import time
from pathlib import Path

from support.servers import find_binary

# It needs no header files, nor libc's own: gcc alone compiles it.
_SHIM = """
typedef long long offset_t;
struct pair { long s; long part; };
extern char *getenv(const char *);
extern int open(const char *, int, ...);
extern void *mmap(void *, unsigned long, int, int, int, long);
extern void *dlsym(void *, const char *);

static volatile offset_t *offset;  /* microseconds */
static int (*real_clock)(int, struct pair *);

__attribute__((constructor)) static void begin(void) {
    if (!real_clock) real_clock = dlsym((void *)-1L, "clock_gettime");
    const char *path = getenv("SERVER_CLOCK");
    if (offset || !path) return;
    int file = open(path, 0);
    void *mapped = file < 0 ? (void *)-1L : mmap(0, 8, 1, 1, file, 0);
    if (mapped != (void *)-1L) offset = mapped;
}

static void now(struct pair *at) {
    begin();
    real_clock(0, at);
    long micros = at->part / 1000 + (offset ? *offset % 1000000 : 0);
    at->s += offset ? *offset / 1000000 : 0;
    if (micros < 0) { micros += 1000000; at->s--; }
    if (micros >= 1000000) { micros -= 1000000; at->s++; }
    at->part = micros * 1000 + at->part % 1000;
}

int clock_gettime(int which, struct pair *at) {
    if (which == 0 || which == 5) { now(at); return 0; }
    begin();
    return real_clock(which, at);
}

int gettimeofday(struct pair *at, void *zone) {
    now(at);
    at->part /= 1000;
    return 0;
}

long time(long *into) {
    struct pair at;
    now(&at);
    if (into) *into = at.s;
    return at.s;
}
"""


class ServerClock:
    """The system's clock plus steps; a server with `env` in its environment uses it."""

    def __init__(self, folder):
        shim, offset = Path(folder) / "server_clock.so", Path(folder) / "server_clock.offset"
        subprocess.run(
            [find_binary("gcc"), "-x", "c", "-shared", "-fPIC", "-O1", "-fno-builtin", "-nostdlib", "-o", shim, "-"],
            input=_SHIM,
            text=True,
            check=True,
        )
        offset.write_bytes(bytes(8))
        with offset.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self.env = {"LD_PRELOAD": str(shim), "SERVER_CLOCK": str(offset)}

    def set_ahead(self, seconds):
        """Step the clock forward, or back, before its server starts; return the sum of all steps in microseconds."""
        offset = struct.unpack("=q", self._offset)[0] + round(seconds * 1_000_000)
        self._offset[:] = struct.pack("=q", offset)
        return offset

    def step(self, client, seconds):
        """Step the clock forward, or back, while its server runs; return once that goes by it. Steps add up."""
        offset = self.set_ahead(seconds)
        while True:  # Valkey reads its clock once in a while
            now, (s, micros) = time.time() + offset / 1e6, client.time()
            if abs(s + micros / 1e6 - now) < min(0.5, abs(seconds) / 2):
                return
