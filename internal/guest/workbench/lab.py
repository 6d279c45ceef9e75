"""Configures JupyterLab so that its kernels are the sandbox's own sessions.

A kernel of JupyterLab is a session of /v1/jupyter with the same name: JupyterLab lists sessions of agents with their
variables, and agents can use kernels that a person starts. Kernels outlive JupyterLab, which finds them under the same IDs
after a restart.
"""

import asyncio
import http.client
import json
import os
import signal
import socket
import time
import urllib.parse
import uuid

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_client.provisioning import KernelProvisionerBase, KernelProvisionerFactory
from jupyter_server.base.handlers import AuthenticatedHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager
from tornado import web

API = os.environ["AIO_API_URL"].removeprefix("unix:")  # the socket for programs of the sandbox, which need no credentials
NAMESPACE = uuid.UUID("5d1c5a3e-8f0e-4b59-9c1b-0d3f5b0a7c11")


class Connection(http.client.HTTPConnection):
    def __init__(self):
        super().__init__("localhost", timeout=180)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(API)


def call(method, path, body=None):
    """Calls the sandbox's server."""
    connection = Connection()
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    if not reply.get("success"):
        raise web.HTTPError(500, str(reply.get("message") or reply.get("detail")))
    return reply["data"]


async def ask(method, path, body=None):
    return await asyncio.to_thread(call, method, path, body)


def path_of(name):
    return "/v1/jupyter/sessions/" + urllib.parse.quote(name, safe="")


def id_of(name):
    """Returns the kernel ID of a session, which never changes."""
    return str(uuid.uuid5(NAMESPACE, name))


class Listing:
    """Caches the sessions of the sandbox for a short time."""

    at, sessions = 0.0, {}

    async def get(self, age=0.0):
        if time.monotonic() - self.at >= age:
            self.sessions, self.at = (await ask("GET", "/v1/jupyter/sessions"))["sessions"], time.monotonic()
        return self.sessions


listing = Listing()
names = {}  # session names by kernel ID
adopting = set()  # existing kernels that are being added to the list


class Provisioner(KernelProvisionerBase):
    """Gets kernels from the sandbox's server, which starts, monitors and ends them."""

    session = None
    deleted = False

    @property
    def has_process(self):
        return self.session is not None

    async def pre_launch(self, **kwargs):
        return {**kwargs, "cmd": []}

    async def launch_kernel(self, cmd, **kwargs):
        name = names[self.kernel_id]
        if self.kernel_id not in adopting:  # otherwise a deleted session would be recreated
            await ask("POST", "/v1/jupyter/sessions/create",
                      {"session_id": name, "kernel_name": self.parent.kernel_name, "cwd": kwargs.get("cwd")})
        self.session = (await listing.get()).get(name)
        if self.session is None:
            raise web.HTTPError(404, f"session {name} was deleted")
        with open(self.session["connection_file"], encoding="utf-8") as file:
            self.connection_info = json.load(file)
        self.connection_info["key"] = self.connection_info["key"].encode()
        return self.connection_info

    async def poll(self):
        if self.session is None or self.deleted:
            return 0
        now = (await listing.get(1.0)).get(names.get(self.kernel_id))
        if now is None:
            return None  # deleted elsewhere: the list of kernels drops it, and it must not be restarted
        return 1 if now["state"] == "stopped" else None

    async def wait(self):
        while await self.poll() is None:
            await asyncio.sleep(0.1)
        self.session = None
        return 0

    async def send_signal(self, signum):
        if self.session is not None and not self.deleted:
            try:
                os.killpg(self.session["pid"], signum)
            except ProcessLookupError:
                pass

    async def kill(self, restart=False):
        # restart is not always set for a forced restart: only cleanup has the right value.
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart=False):
        await self.kill()

    async def shutdown_requested(self, restart=False):
        if not restart:
            await self.delete()

    async def delete(self):
        if not self.deleted and self.kernel_id in names:
            self.deleted = True
            try:
                await ask("DELETE", path_of(names[self.kernel_id]))
            except web.HTTPError:
                pass  # already deleted

    async def cleanup(self, restart=False):
        if not restart:
            await self.delete()
            names.pop(self.kernel_id, None)


class Entry:
    @staticmethod
    def load():
        return Provisioner


provisioners = KernelProvisionerFactory.instance()
provisioners.provisioners["cove"] = Entry
provisioners.default_provisioner_name = "cove"


class Kernels(AsyncMappingKernelManager):
    """Lists the sessions with a kernel as kernels."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.found = set()  # kernels that were not started here
        self.turn = asyncio.Lock()

    async def _async_start_kernel(self, *, kernel_id=None, path=None, **kwargs):
        if kernel_id is None or kernel_id not in names:
            name = await self.new_name((kwargs.get("env") or {}).get("JPY_SESSION_NAME"))
            kernel_id = id_of(name)
            names[kernel_id] = name
        try:
            return await super()._async_start_kernel(kernel_id=kernel_id, path=path, **kwargs)
        except BaseException:
            if kernel_id not in self:
                names.pop(kernel_id, None)
            raise

    start_kernel = _async_start_kernel

    async def new_name(self, notebook):
        """Returns a session name for a notebook."""
        base = os.path.splitext(os.path.basename(notebook or ""))[0][:100] or "lab"
        taken = {*await listing.get(), *names.values()}
        return next(name for n in range(len(taken) + 2) if (name := base if n == 0 else f"{base} {n + 1}") not in taken)

    async def adopt(self):
        """Adds and removes kernels according to the sessions of the sandbox."""
        async with self.turn:
            before = [(kernel_id, names[kernel_id]) for kernel_id in self._kernels if kernel_id in names]
            sessions = await listing.get()  # may lack sessions that have just started
            for kernel_id, name in before:
                if name not in sessions and kernel_id in self._kernels:
                    self._kernels[kernel_id].stop_restarter()
                    self.stop_watching_activity(kernel_id)
                    self.remove_kernel(kernel_id)
                    names.pop(kernel_id, None)
            for name, session in sessions.items():
                kernel_id = id_of(name)
                if kernel_id not in names and session["state"] != "stopped":
                    names[kernel_id] = name
                    adopting.add(kernel_id)
                    try:
                        await self.start_kernel(kernel_id=kernel_id, kernel_name=session["kernel_name"])
                        self.found.add(kernel_id)
                    except (web.HTTPError, OSError) as error:  # the session has ended; otherwise the next call retries
                        self.log.info("Cannot add session %s: %s", name, error)
                    finally:
                        adopting.discard(kernel_id)

    async def list_kernels(self):
        await self.adopt()
        return super().list_kernels()

    async def shutdown_all(self, now=False):
        """Does nothing: kernels outlive JupyterLab."""


class Sessions(SessionManager):
    """Shows sessions that were not started here under their names."""

    async def list_sessions(self):
        await self.kernel_manager.adopt()
        self.cursor.execute("SELECT kernel_id FROM session")
        shown = {row["kernel_id"] for row in self.cursor.fetchall()}
        for kernel_id in self.kernel_manager.found - shown:
            if kernel_id in self.kernel_manager:
                name = names[kernel_id]
                await self.save_session(str(uuid.uuid5(NAMESPACE, kernel_id)), path=name, name=name, type="console", kernel_id=kernel_id)
        return await super().list_sessions()


class Specs(KernelSpecManager):
    """Lists the kernel specifications of the sandbox's server."""

    known, at = {}, 0.0

    def list(self):
        if time.monotonic() - self.at > 30:
            info = call("GET", "/v1/jupyter/info")
            self.known = {k["name"]: k for k in info.get("kernels") or []}
            self.at = time.monotonic()
        return self.known

    def resources(self):
        import ipykernel

        return os.path.join(os.path.dirname(ipykernel.__file__), "resources")

    def find_kernel_specs(self):
        # Aliases of a kernel work, but are not listed.
        first = {kernel["display_name"]: name for name, kernel in reversed(self.list().items())}
        return {name: self.resources() for name in self.list() if name in first.values()}

    def get_kernel_spec(self, kernel_name):
        kernel = self.list().get(kernel_name)
        if kernel is None:
            raise NoSuchKernel(kernel_name)
        return KernelSpec(argv=[], display_name=kernel["display_name"], language=kernel["language"],
                          interrupt_mode=kernel["interrupt_mode"], resource_dir=self.resources())

    def get_all_specs(self):
        return {name: {"resource_dir": self.resources(), "spec": self.get_kernel_spec(name).to_dict()} for name in self.find_kernel_specs()}


def base_url(handler):
    """Returns the path of JupyterLab as the client sees it, which the sandbox's server sends."""
    return handler.request.headers.get("X-Cove-Base") or "/"


AuthenticatedHandler.base_url = property(base_url)
ExtensionHandlerMixin.base_url = property(base_url)


def place(handler, config):
    """Adds the path of JupyterLab to the addresses in the page."""
    base = base_url(handler).rstrip("/")
    def is_path(key, value):
        return key.startswith("full") and key.endswith("Url") and isinstance(value, str) and value.startswith("/")

    return {key: base + value if is_path(key, value) else value for key, value in config.items()}


c = get_config()  # noqa: F821
c.ServerApp.kernel_manager_class = Kernels
c.ServerApp.session_manager_class = Sessions
c.ServerApp.kernel_spec_manager_class = Specs
c.ServerApp.tornado_settings = {"page_config_hook": place}
c.ServerApp.base_url = "/"
c.ServerApp.open_browser = False
c.ServerApp.allow_root = True
# The sandbox's server has authenticated the client and checked the origin.
c.ServerApp.allow_remote_access = True
c.ServerApp.disable_check_xsrf = True
c.IdentityProvider.token = ""
c.ServerApp.allow_origin = "*"
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.news_url = None
c.LabApp.extension_manager = "readonly"
