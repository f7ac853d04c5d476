"""Object stores for tests, in threads of this process: S3 of moto, Azure of Partita itself."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib import request

import pytest
from azure.storage.blob import BlobServiceClient
from moto.server import ThreadedMotoServer

import partita

_numbers = count(1)


@contextmanager
def s3_server() -> Iterator[None]:
    """Run a server, and name it in the environment as operators do."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
            patch.setenv("AWS_ALLOW_HTTP", "true")
            patch.setenv("AWS_ACCESS_KEY_ID", "tests")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
            patch.setenv("AWS_REGION", "us-east-1")
            yield
    finally:
        server.stop()


def new_bucket() -> str:
    """Make a bucket and return the URL of a prefix in it."""
    name = f"long-{next(_numbers)}"
    address = f"{os.environ['AWS_ENDPOINT_URL']}/{name}"
    with request.urlopen(request.Request(address, method="PUT")):
        return f"s3://{name}/partita"


@contextmanager
def azure_server() -> Iterator[None]:
    """Run an account in memory, and name it in the environment as operators do."""
    with partita.open_account(None) as account, pytest.MonkeyPatch.context() as patch:
        served = account.listen()
        patch.setenv("AZURE_STORAGE_ENDPOINT", served.blob_endpoint)
        patch.setenv("AZURE_ALLOW_HTTP", "true")
        patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", served.account_name)
        patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", served.account_key)
        yield


def new_container() -> str:
    """Make a container and return the URL of a prefix in it."""
    name = f"long-{next(_numbers)}"
    credential = {
        "account_name": os.environ["AZURE_STORAGE_ACCOUNT_NAME"],
        "account_key": os.environ["AZURE_STORAGE_ACCOUNT_KEY"],
    }
    with BlobServiceClient(os.environ["AZURE_STORAGE_ENDPOINT"], credential) as client:
        client.create_container(name)
    return f"az://{name}/partita"
