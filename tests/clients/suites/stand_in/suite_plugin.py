"""The plugin for the suites: names of the cloud lead to the server under test.

`SUITE_PORTS` is "blob=1,queue=2,table=3". Only the addresses of the names are replaced: the client
sends, signs and verifies what it would send to the cloud.
"""

import os
import socket
import sys
from types import ModuleType
from typing import Any

import pytest
from devtools_testutils import test_proxy
from devtools_testutils.credentials import DevelopmentCredential

__all__ = ["test_proxy"]
PORTS = dict(each.split("=") for each in os.environ["SUITE_PORTS"].split(","))
SUFFIX = ".core.windows.net"

_getaddrinfo = socket.getaddrinfo


def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if isinstance(name, str) and name.endswith(SUFFIX):
        service = name.removesuffix(SUFFIX).rpartition(".")[2]
        return _getaddrinfo("127.0.0.1", int(PORTS[service]), *args, **kwargs)
    return _getaddrinfo(host, port, *args, **kwargs)


socket.getaddrinfo = getaddrinfo


class StorageManagementClient:
    """The management of accounts, which a server has not: a test that uses it fails."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError


for name in ("azure.mgmt", "azure.mgmt.storage", "azure.mgmt.storage.aio"):
    module = ModuleType(name)
    module.StorageManagementClient = StorageManagementClient  # type: ignore[attr-defined]
    sys.modules[name] = module


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    module: Any = sys.modules.get("_shared.testcase")
    if module is not None:
        module.DefaultAzureCredential = DevelopmentCredential
