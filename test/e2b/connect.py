"""Uses the interactive terminal of the public command line: connect.py SANDBOX COMMAND..."""
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

sandbox, command = sys.argv[1], sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(command[0], command + ["sandbox", "connect", sandbox])
seen = b""
deadline = time.time() + 200


def resize(rows, cols):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def read(wait):
    """Reads available output. Returns False at the end."""
    global seen
    try:
        if select.select([terminal], [], [], wait)[0]:
            seen += os.read(terminal, 65536).replace(b"\r", b"")
    except OSError:  # the other side has ended
        return False
    return True


def write(text, *wanted, again=False):
    """Types text, repeatedly if necessary, until all of wanted is shown."""
    os.write(terminal, text)
    while not all(w in seen for w in wanted):
        assert time.time() < deadline, f"timed out: {wanted} in {seen!r}"
        assert read(0.5), f"ended before {wanted}: {seen!r}"
        if again:
            os.write(terminal, text)


resize(31, 93)
write(b"", b"$ ")  # the prompt
write(b"echo in$((40 + 2)); tty; pwd; id -un; cat\n", b"in42\n/dev/pts/", b"\n/home/user\nuser\n")
write(b"typed\n", b"typed\ntyped\n")
write(b"\x03", b"^C\n")  # interrupts cat, not the client
write(b"stty size\n", b"\n31 93\n", again=True)
resize(22, 71)
write(b"stty size\n", b"\n22 71\n", again=True)
os.write(terminal, b"exit\n")
while read(1):
    assert time.time() < deadline, f"timed out: the end in {seen!r}"
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert code == 0, f"connect ended with {code}: {seen!r}"
