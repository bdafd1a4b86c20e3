"""Let a Docker container reach the engine on this machine's loopback while a command runs.

On Linux `host.docker.internal` is the address of Docker's bridge, where nothing listens; Docker
Desktop leads it to the loopback itself, and then there is nothing to do here.

    python -m wakala.bridge sam local invoke IngestFunction …
"""

import asyncio
import fcntl
import socket
import struct
import sys
from contextlib import suppress

from wakala import engine

BRIDGE = "docker0"
_SIOCGIFADDR = 0x8915


def bridge_address() -> str | None:
    """The IPv4 address of Docker's bridge, None where there is none."""
    request = struct.pack("256s", BRIDGE.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


async def run(command: list[str], port: int) -> int:
    """Run `command` with the bridge's `port` led to the loopback's; its exit status."""
    address = bridge_address()
    if address is None:
        return await _run(command)
    try:
        server = await asyncio.start_server(_Lead(port), address, port)
    except OSError:  # something answers there already: an engine of the caller's own
        return await _run(command)
    async with server:
        return await _run(command)


class _Lead:
    """Copies each connection to the loopback and back."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection(engine.LOOPBACK, self._port)
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _run(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()


if __name__ == "__main__":
    started = engine.running()
    sys.exit(asyncio.run(run(sys.argv[1:], started.port if started else engine.DEFAULT_PORT)))
