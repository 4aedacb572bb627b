"""What travels to a process that runs already: something pickled, with the file descriptors in it."""

from __future__ import annotations

import errno
import io
import os
import pickle
import socket
import struct
from collections.abc import Generator, Sequence
from multiprocessing import context, reduction
from typing import Any

MOST_DESCRIPTORS = 200
"""In one message; the kernel takes 253."""
_NUMBER = struct.Struct("=q")


class Parcel:
    """Something packed that can be pickled for a child process; meanwhile this plays the child that is started."""

    def __init__(self, *contents: Any) -> None:
        self._descriptors: list[int] = []
        text = io.BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]  # asks no more of it than what is here
        try:
            for content in contents:
                reduction.dump(content, text)
        finally:
            context.set_spawning_popen(None)
        self._text = text.getvalue()

    def duplicate_for_child(self, descriptor: int) -> int:
        """Called while pickling; returns what stands for the descriptor."""
        self._descriptors.append(descriptor)
        return len(self._descriptors) - 1

    @staticmethod
    def DupFd(index: int) -> _Received:
        """Called while pickling; what the other side finds in place of the descriptor."""
        return _Received(index)

    def send(self, to: socket.socket) -> None:
        """Sends it over a socket that keeps messages apart; a large text travels as a file and waits for nobody.

        Raises:
            OSError: the other side has gone.
        """
        file = os.memfd_create("sf-parcel")
        try:
            with open(file, "wb", closefd=False) as text:
                text.write(self._text)
            descriptors = [file, *self._descriptors]
            for start in range(0, len(descriptors), MOST_DESCRIPTORS):
                some = descriptors[start : start + MOST_DESCRIPTORS]
                socket.send_fds(to, [_NUMBER.pack(len(descriptors))], some)
        finally:
            os.close(file)


def receive(sender: socket.socket) -> list[int]:
    """The descriptors of a parcel, that of the text first; empty if the sender has gone.

    Raises:
        OSError: this process may not have so many.
    """
    descriptors: list[int] = []
    while True:
        number, some, flags, _ = socket.recv_fds(sender, _NUMBER.size, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "Too many open files")
        if not number:
            return []
        descriptors += some
        if len(descriptors) == _NUMBER.unpack(number)[0]:
            return descriptors


def opened(descriptors: Sequence[int]) -> Generator[Any]:
    """The contents of a parcel, each unpickled when it is asked for; they own their descriptors."""
    _Received.descriptors = descriptors[1:]
    with open(descriptors[0], "rb") as text:
        text.seek(0)
        while True:
            yield pickle.load(text)


class _Received:
    """Stands for a file descriptor in what is pickled."""

    descriptors: Sequence[int] = ()

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        return self.descriptors[self._index]
