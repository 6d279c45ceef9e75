# Evaluated once in every IPython kernel before its first cell, in a namespace of
# its own.
#
# What programs started by a cell (os.system, subprocess) and C libraries print
# goes to descriptors 1 and 2. The kernel's own capture reads them in a thread,
# so that text may arrive after the cell is over, out of order, or with a letter
# cut in half. Here the pipe is also emptied by whoever writes to or flushes the
# stream, which puts everything in its order and before the end of the cell.
import _thread
import codecs
import contextlib
import faulthandler
import fcntl
import logging
import os
import select
import signal
import socket
import sys
import termios
import threading

import ipykernel.connect
import zmq

shell = get_ipython()  # noqa: F821
pid = os.getpid()

# What one message of a stream may hold, and how many messages may wait for their
# reader: together they bound what a cell that prints without end costs.
LARGE = 1 << 20
QUEUE = 100


def attach(stream, fd):
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.dup2(writer, fd)
    os.close(writer)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lock = threading.RLock()
    write, flush = stream.write, stream.flush
    waiting = bytearray(4)
    unsent = 0

    # The stream would take in any amount and send it when it has the time.
    def put(text):
        nonlocal unsent
        if not isinstance(text, str) or unsent + len(text) <= LARGE:
            count = write(text)
            unsent += len(text)
            return count
        for start in range(0, len(text), LARGE):
            write(text[start : start + LARGE])
            flush()
        unsent = 0
        return len(text)

    def drain():
        with lock:
            try:
                # One read takes all that a pipe can hold.
                chunk = os.read(reader, 1 << 20)
            except BlockingIOError:
                return True
            text = decoder.decode(chunk, final=not chunk)
            if text:
                put(text)
            return bool(chunk)

    # A forked child has the pipe too, but not the right to empty it, and its
    # copy of the lock may be held for ever.
    def write_in_order(text):
        if os.getpid() != pid:
            return write(text)
        with lock:
            fcntl.ioctl(reader, termios.FIONREAD, waiting)
            if any(waiting):
                drain()
        return put(text)

    def flush_all():
        if os.getpid() == pid:
            drain()
        return flush()

    def watch():
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        while poll.poll() and drain():
            pass

    stream.write = write_in_order
    stream.flush = flush_all
    # subprocess.run(..., stdout=sys.stdout) asks for it.
    stream.fileno = lambda: fd
    # Not threading.Thread: it would tie the text to the cell that starts it.
    _thread.start_new_thread(watch, ())
    return flush_all


# Where the process itself reports: what is written here survives its death.
report = open(os.dup(getattr(sys.stderr, "_original_stdstream_copy", None) or 2), "w", buffering=1)
faulthandler.enable(file=report, all_threads=False)
for log in {shell.kernel.log, logging.getLogger("tornado"), logging.getLogger()}:
    for handler in log.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setStream(report)

streams = [(name, getattr(sys, name)) for name in ("stdout", "stderr")]
flushes = [attach(stream, fd) for fd, (_, stream) in enumerate(streams, 1)]


def settle():
    # The kernel flushes sys.stdout and sys.stderr after a cell, but a cell may
    # have put something else there.
    for (name, stream), flush in zip(streams, flushes):
        if getattr(sys, name, None) is not stream:
            flush()


shell.events.register("post_execute", settle)

# A full queue makes the cell wait for its reader. Else messages would be thrown
# away, and the one that says that the cell is over may be among them.
outlet = shell.kernel.iopub_thread


def bound():
    outlet.socket.setsockopt(zmq.XPUB_NODROP, 1)
    outlet.socket.setsockopt(zmq.SNDHWM, QUEUE)


outlet.schedule(bound)

# The kernel listens on a TCP port for what forked processes print. Any user of the
# machine can connect to it, so a socket in the kernel's private folder replaces it.
forked = "ipc://" + os.path.join(os.path.dirname(ipykernel.connect.get_connection_file()), "forked")


def move_pipe():
    pipe = getattr(outlet, "_pipe_in", None)
    pipe = getattr(pipe, "socket", pipe)
    if pipe is not None:
        port = pipe.getsockopt_string(zmq.LAST_ENDPOINT)
        pipe.bind(forked)
        pipe.unbind(port)


def connect_pipe():
    context = zmq.Context()  # a forked process cannot use the one that it has
    pipe = context.socket(zmq.PUSH)
    pipe.linger = 3000
    pipe.connect(forked)
    return context, pipe


outlet.schedule(move_pipe)
outlet._setup_pipe_out = connect_pipe

# A signal wakes the event loop, so that an interrupt reaches a cell that awaits
# something now and not when that has happened.
nudge, nudged = socket.socketpair()
nudge.setblocking(False)
nudged.setblocking(False)
shell.kernel.io_loop.add_handler(nudged.fileno(), lambda fd, events: nudged.recv(4096), select.POLLIN)
signal.set_wakeup_fd(nudge.fileno(), warn_on_full_buffer=False)

# What "!" and %pip run gets no terminal: there is nobody to answer its questions,
# and nothing to draw progress bars on.
shell.system = shell.system_raw

# IPython keeps a second copy of everything printed, without bound.
if hasattr(shell, "_tee"):
    shell._tee = lambda channel: contextlib.nullcontext()
