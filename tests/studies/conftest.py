"""No test of the data reaches beyond this machine, or writes into the user's own cache."""

import socket

import pytest


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path_factory):
    resolve = socket.getaddrinfo

    def local_only(host, *args, **kwargs):
        if host not in ("127.0.0.1", "localhost"):
            raise socket.gaierror(f"A test asked for {host}: tests stay on this machine.")
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", local_only)
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LATENTCAL_CACHE", str(tmp_path_factory.mktemp("cache")))
