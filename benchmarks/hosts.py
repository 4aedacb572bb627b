"""Hosts on one machine: network namespaces of Linux, and a wire between them that delays and loses packets.

Each host has a TUN device. One process, the wire, reads the packets of all hosts and writes them to their destination
later. TCP of the kernel runs on both ends, so a lost packet is sent again as on a real network. A kernel with the
queueing discipline netem would need no such process; many kernels are built without it. It takes root and `ip`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import random
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
TUNSETIFF, IFF_TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
PACKET_BYTES = 1500


@dataclass(frozen=True)
class Network:
    """What happens to a packet between two hosts."""

    delay_s: float = 0.0
    """In each direction."""
    loss: float = 0.0
    """The fraction of packets that do not arrive."""

    def __str__(self) -> str:
        return f"{1e3 * self.delay_s:g} ms" + (f", {100 * self.loss:g} % lost" if self.loss else "")


@contextlib.contextmanager
def joined(count: int, network: Network) -> Iterator[list[tuple[str, str]]]:
    """Name and address of each of as many hosts, which are gone afterwards."""
    hosts = [(f"sf-host-{os.getpid()}-{index}", f"10.77.0.{index + 1}") for index in range(count)]
    with contextlib.ExitStack() as undo:
        for name, _ in hosts:
            _ip("netns", "add", name)
            undo.callback(_ip, "netns", "delete", name)
        context = multiprocessing.get_context("spawn")
        end, wire_end = context.Pipe()
        wire = context.Process(target=_carry, args=(hosts, network, wire_end), daemon=True)
        wire.start()
        undo.callback(wire.join)
        undo.callback(wire.kill)
        if not end.poll(30):
            raise TimeoutError("The wire between the hosts does not start.")
        for name, address in hosts:
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            _ip("-n", name, "link", "set", "wire", "up", "mtu", str(PACKET_BYTES), "txqueuelen", "10000")
            _ip("-n", name, "link", "set", "lo", "up")
        yield hosts


def enter(name: str, address: str) -> None:
    """Moves this thread, and what it starts, to a host. Its host name is its address, which needs no look-up."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"The namespace {name} cannot be entered")
    if libc.unshare(CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "A host name of its own is refused")
    socket.sethostname(address)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _carry(hosts: list[tuple[str, str]], network: Network, end: Connection) -> None:
    """The wire: from every device to the device of the destination."""
    devices = {socket.inet_aton(address): _device(name, address) for name, address in hosts}
    end.send("ready")
    draw = random.Random(1).random
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for device in select.select(list(devices.values()), [], [], left_s)[0]:
            due_s = time.monotonic() + network.delay_s
            for packet in _packets(device):
                target = devices.get(packet[16:20])
                if target is not None and draw() >= network.loss:
                    count += 1
                    heapq.heappush(waiting, (due_s, count, target, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(waiting)
            os.write(target, packet)


def _device(name: str, address: str) -> int:
    enter(name, address)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"wire", IFF_TUN_WITHOUT_HEADER))
    return device


def _packets(device: int) -> Iterator[bytes]:
    """Those that wait, but not so many that others are late."""
    with contextlib.suppress(BlockingIOError):
        for _ in range(16):
            yield os.read(device, 2 * PACKET_BYTES)
