"""One target under atheris, guided by code coverage: started by `python tests/fuzz --guided`.

If the first byte of an input is odd, the rest is a seed for the target's own generator, which gets far inside. If it is
even, the rest is the input itself, which coverage can guide.
"""

import asyncio
import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["ray_messaging"]):
    from support.fuzzing import TARGETS


def main():
    """Run until the time is up; atheris ends the process."""
    target = TARGETS[sys.argv[1]]()
    # The lane's targets want a loop; atheris never comes back to one.
    loop = asyncio.new_event_loop()
    asyncio.events._set_running_loop(loop)

    def check(data):
        if data:
            target.check(target.make(Random(data[1:])) if data[0] & 1 else framed(sys.argv[1], data[1:]))

    atheris.Setup(sys.argv[:1] + sys.argv[2:], check)
    atheris.Fuzz()


def framed(name, data):
    """Give a frame its right checksum: no chance would find it."""
    if name != "frames" or len(data) < 4:
        return data
    from support.fuzzing import joined

    length = int.from_bytes(data[:2], "little")
    return joined(data[2 : 2 + length], data[2 + length :])


if __name__ == "__main__":
    main()
