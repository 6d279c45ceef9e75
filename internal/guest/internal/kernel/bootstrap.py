# Evaluated once in every IPython kernel before its first cell, in a separate namespace.
#
# Programs started by a cell (os.system, subprocess) and C libraries print to descriptors
# 1 and 2. The kernel's own capture reads them in a thread, so text may arrive after the end
# of the cell, out of order, or with split characters. Here each write and flush of a stream
# also drains the pipe, so that all output is in order and precedes the end of the cell.
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

# Maximum characters in one stream message, and maximum number of queued messages: together
# they limit the memory of a cell that never stops printing.
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

    # The stream itself would buffer any amount.
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
                # One read drains a full pipe.
                chunk = os.read(reader, 1 << 20)
            except BlockingIOError:
                return True
            text = decoder.decode(chunk, final=not chunk)
            if text:
                put(text)
            return bool(chunk)

    # A forked child shares the pipe but must not drain it. Its copy of the lock may never
    # be released.
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
    # For subprocess.run(..., stdout=sys.stdout).
    stream.fileno = lambda: fd
    # Not threading.Thread, which would assign the text to the cell that starts it.
    _thread.start_new_thread(watch, ())
    return flush_all


# The process's own output, which is kept after a crash.
report = open(os.dup(getattr(sys.stderr, "_original_stdstream_copy", None) or 2), "w", buffering=1)
faulthandler.enable(file=report, all_threads=False)
for log in {shell.kernel.log, logging.getLogger("tornado"), logging.getLogger()}:
    for handler in log.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setStream(report)

streams = [(name, getattr(sys, name)) for name in ("stdout", "stderr")]
flushes = [attach(stream, fd) for fd, (_, stream) in enumerate(streams, 1)]


def settle():
    # The kernel flushes sys.stdout and sys.stderr after a cell, but a cell may have
    # replaced them.
    for (name, stream), flush in zip(streams, flushes):
        if getattr(sys, name, None) is not stream:
            flush()


shell.events.register("post_execute", settle)

# With a full queue the cell waits for the reader. Otherwise messages would be dropped,
# perhaps including the end of the cell.
iopub = shell.kernel.iopub_thread


def limit_queue():
    iopub.socket.setsockopt(zmq.XPUB_NODROP, 1)
    iopub.socket.setsockopt(zmq.SNDHWM, QUEUE)


iopub.schedule(limit_queue)

# The kernel listens on a TCP port for the output of forked processes. Any user of the
# machine can connect to it, so a socket in the kernel's private folder replaces it.
forked = "ipc://" + os.path.join(os.path.dirname(ipykernel.connect.get_connection_file()), "forked")


def move_pipe():
    pipe = getattr(iopub, "_pipe_in", None)
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


iopub.schedule(move_pipe)
iopub._setup_pipe_out = connect_pipe

# A signal wakes the event loop, so that an interrupt reaches an awaiting cell immediately.
waker, woken = socket.socketpair()
waker.setblocking(False)
woken.setblocking(False)
shell.kernel.io_loop.add_handler(woken.fileno(), lambda fd, events: woken.recv(4096), select.POLLIN)
signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

# Programs run by "!" and %pip get no terminal, so that they neither prompt nor draw
# progress bars.
shell.system = shell.system_raw

# IPython keeps an unlimited second copy of all printed text.
if hasattr(shell, "_tee"):
    shell._tee = lambda channel: contextlib.nullcontext()
