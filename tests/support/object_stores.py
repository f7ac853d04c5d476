"""Object stores for tests, in threads of this process: S3 of moto, Azure of Partita itself.

The API of Google that obstore uses is that of S3 with other headers, so it is moto's as well.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any
from urllib import request

import pytest
from azure.storage.blob import BlobServiceClient
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import ThreadedMotoServer
from werkzeug.serving import make_server

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
    return f"s3://{_made(os.environ['AWS_ENDPOINT_URL'])}/partita"


def _made(endpoint: str) -> str:
    name = f"long-{next(_numbers)}"
    with request.urlopen(request.Request(f"{endpoint}/{name}", method="PUT")):
        return name


@contextmanager
def google_server(folder: Path) -> Iterator[None]:
    """Run a server, and name it in the environment as operators do."""
    moto = DomainDispatcherApplication(create_backend_app)

    def as_s3(environ: dict[str, Any], start: Any) -> Any:
        environ["HTTP_AUTHORIZATION"] = _CREDENTIAL
        if (source := environ.get("HTTP_X_GOOG_COPY_SOURCE")) is not None:
            environ["HTTP_X_AMZ_COPY_SOURCE"] = source
        query = environ["QUERY_STRING"]
        environ["RAW_URI"] = environ["PATH_INFO"] + (f"?{query}" if query else "")
        return moto(environ, start)

    server = make_server("127.0.0.1", 0, as_s3, threaded=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.port}"
        account = folder / "service-account.json"
        secrets = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account.write_text(json.dumps({"gcs_base_url": address, "disable_oauth": True, **secrets}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
            patch.setenv("GOOGLE_ALLOW_HTTP", "true")
            yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_CREDENTIAL = "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"


def new_google_bucket() -> str:
    """Make a bucket and return the URL of a prefix in it."""
    account = json.loads(Path(os.environ["GOOGLE_SERVICE_ACCOUNT"]).read_text())
    return f"gs://{_made(account['gcs_base_url'])}/partita"


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
