"""Makes Python resolve names below localhost, as browsers do, if the system's resolver does not."""
import socket

system = socket.getaddrinfo


def getaddrinfo(host, *args, **kwargs):
    name = host.decode() if isinstance(host, bytes) else host
    return system("127.0.0.1" if name and name.endswith(".localhost") else host, *args, **kwargs)


socket.getaddrinfo = getaddrinfo
