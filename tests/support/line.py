"""A network that fails: a line through loopback that is cut without a word to either end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

REFUSAL = b"SFATAL\0C08P01\0Munsupported startup parameter\0\0"


class Line:
    """A connection through loopback that can be cut without being closed.

    Args:
        refused: A setting that a client of PostgreSQL may not begin with, as poolers refuse most.
    """

    def __init__(self, refused: str | None = None) -> None:
        self.refused = None if refused is None else b"\0" + refused.encode() + b"\0"
        self.whole = asyncio.Event()
        self.whole.set()

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter | None = None
    ) -> None:
        try:
            while piece := await reader.read(65_536):
                await self.whole.wait()
                if back is not None and self.refused is not None and self.refused in piece:
                    back.write(b"E" + (len(REFUSAL) + 4).to_bytes(4, "big") + REFUSAL)
                    await back.drain()
                    return
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, RuntimeError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def to(self, port: int) -> AsyncIterator[int]:
        """The port at which the line begins."""
        tasks: set[asyncio.Task[None]] = set()

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            tasks.update(
                {asyncio.create_task(self.carry(reader, back, writer)), asyncio.create_task(self.carry(there, writer))}
            )

        async with await asyncio.start_server(meet, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
