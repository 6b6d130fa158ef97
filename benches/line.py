"""A line to a server: what goes over it is late by half a round trip in each direction, and shares one bandwidth.

    python benches/line.py PORT SERVER_PORT ROUND_TRIP_MS GBIT_PER_S
"""
import asyncio
import sys


class Direction:
    """What flows one way: bytes leave in the order in which they came, not faster than the line, and arrive late."""

    def __init__(self, delay: float, bytes_per_second: float):
        self.delay = delay
        self.rate = bytes_per_second
        self.free = 0.0  # when the line has sent all that it was given

    def arrival(self, count: int) -> float:
        now = asyncio.get_running_loop().time()
        self.free = max(self.free, now) + (count / self.rate if self.rate else 0.0)
        return self.free + self.delay


async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Direction) -> None:
    on_its_way: asyncio.Queue = asyncio.Queue(maxsize=4096)

    async def deliver() -> None:
        loop = asyncio.get_running_loop()
        while (item := await on_its_way.get()) is not None:
            when, part = item
            late = when - loop.time()
            if late > 0:
                await asyncio.sleep(late)
            sink.write(part)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    delivering = asyncio.create_task(deliver())
    try:
        while part := await source.read(65536):
            await on_its_way.put((way.arrival(len(part)), part))
    except ConnectionError:
        pass
    await on_its_way.put(None)
    try:
        await delivering
    except (ConnectionError, OSError):
        pass


async def main(port: int, server: int, round_trip: float, gbit: float) -> None:
    up, down = (Direction(round_trip / 2000, gbit * 1e9 / 8) for _ in range(2))

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server, limit=1 << 20)
        except OSError:
            writer.close()
            return
        # A connection is made in one round trip, too.
        await asyncio.sleep(round_trip / 1000)
        await asyncio.gather(carry(reader, far_writer, up), carry(far_reader, writer, down))
        for end in (writer, far_writer):
            end.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", port, limit=1 << 20, backlog=1024)
    async with listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
