"""A Jupyter kernel for Java. It runs cells in the program of Cells.java, in a process that keeps their variables."""
import json
import os
import signal
import struct
import subprocess
import sys

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

FOLDER = os.path.dirname(os.path.abspath(__file__))
STREAMS = {b"o": "stdout", b"e": "stderr"}


class Java:
    """The process."""

    def __init__(self):
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-cp", FOLDER, "Cells"]
        # Java handles interrupts only if they are not ignored when it starts.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(command + [f"/dev/fd/{requests}", f"/dev/fd/{replies}"], stdin=subprocess.DEVNULL,
                                            pass_fds=(requests, replies))
        finally:
            signal.signal(signal.SIGINT, handler)
            os.close(requests)
            os.close(replies)
        list(self.read())  # until it is ready

    def run(self, code):
        """Runs a cell and yields its replies."""
        text = code.encode("utf-8", "surrogatepass")
        data = memoryview(struct.pack(">i", len(text)) + text)
        try:
            while data:
                data = data[os.write(self.requests, data):]
        except BrokenPipeError:
            pass  # the end is also read
        return self.read()

    def read(self):
        while (kind := self.take(1)) not in (b"d", b""):
            (size,) = struct.unpack(">i", self.take(4))
            yield kind, self.take(size)
        if not kind:
            code = self.process.wait()
            raise EOFError(f"the Java process has ended with code {code}; its variables are lost")
        self.take(4)

    def take(self, size):
        data = b""
        while len(data) < size:
            part = os.read(self.replies, size - len(data))
            if not part:
                return b""
            data += part
        return data

    def close(self):
        os.close(self.requests)
        os.close(self.replies)
        self.process.kill()
        self.process.wait()


class JavaKernel(Kernel):
    implementation = "java"
    implementation_version = "1"
    banner = "Java"
    with open(os.path.join(FOLDER, "kernel.json"), encoding="utf-8") as _file:
        language_info = {"name": "java", "mimetype": "text/x-java-source", "file_extension": ".java",
                         "version": json.load(_file)["metadata"]["version"]}

    def __init__(self, **config):
        super().__init__(**config)
        self.java = Java()

    def pre_handler_hook(self):
        """Ignores interrupts while a cell runs: the process also receives them, and ends the cell."""

    def post_handler_hook(self):
        """Does nothing, because the other hook changes nothing."""

    async def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **_):
        error = None
        try:
            self.java = self.java or Java()
            texts = {}  # bytes of incomplete characters
            for kind, data in self.java.run(code):
                if kind in STREAMS:
                    data = texts.pop(kind, b"") + data
                    whole = complete(data)
                    texts[kind] = data[whole:]
                    if whole:
                        self.publish("stream", {"name": STREAMS[kind], "text": data[:whole].decode("utf-8", "replace")})
                elif kind == b"x":
                    error = data.decode("utf-8", "replace").split("\0", 2)
                elif not silent:
                    text = data.decode("utf-8", "replace")
                    self.publish("execute_result", {"execution_count": self.execution_count, "data": {"text/plain": text}, "metadata": {}})
        except EOFError as e:
            self.java.close()
            self.java, error = None, ["ProcessExit", str(e), f"ProcessExit: {e}"]
        if error is None:
            return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        content = {"ename": error[0], "evalue": error[1], "traceback": error[2].splitlines()}
        self.publish("error", content)
        return {"status": "error", "execution_count": self.execution_count, **content}

    def publish(self, kind, content):
        self.send_response(self.iopub_socket, kind, content)

    def do_shutdown(self, restart):
        if self.java:
            self.java.close()
            self.java = None
        return {"status": "ok", "restart": restart}


def complete(data):
    """Returns the length of data without an incomplete character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            return len(data) - back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else len(data)
        if byte < 0x80:
            break
    return len(data)


if __name__ == "__main__":
    IPKernelApp.launch_instance(argv=sys.argv[1:], kernel_class=JavaKernel)
