"""Copies from another server, which the operator has allowed, by the official SDK."""

import base64
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import (
    BlobBlock,
    BlobSasPermissions,
    BlobServiceClient,
    ContainerClient,
    generate_blob_sas,
)

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.live import LiveServer

CREDENTIAL = {"account_name": DEVELOPMENT_ACCOUNT, "account_key": DEVELOPMENT_KEY}
LONG = bytes(range(256)) * 1200


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    running = LiveServer(tmp_path_factory.mktemp("source"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory, source: LiveServer
) -> Iterator[ContainerClient]:
    host = urlsplit(source.blob_endpoint).netloc
    running = LiveServer(tmp_path_factory.mktemp("target"), "--copy-from-host", host)
    with BlobServiceClient(running.blob_endpoint, CREDENTIAL, retry_total=0) as client:
        yield client.create_container("copies")
    running.stop()


@pytest.fixture(scope="module")
def url(source: LiveServer) -> str:
    """Store a blob in the source, and return its address with a SAS."""
    with BlobServiceClient(source.blob_endpoint, CREDENTIAL) as client:
        blob = client.create_container("photos").upload_blob("a b", LONG, metadata={"k": "v"})
        sas = generate_blob_sas(
            DEVELOPMENT_ACCOUNT,
            "photos",
            "a b",
            account_key=DEVELOPMENT_KEY,
            permission=BlobSasPermissions(read=True),
            expiry=datetime.now(UTC) + timedelta(hours=1),
        )
        return f"{blob.url}?{sas}"


def code_of(raised: pytest.ExceptionInfo[Any]) -> str:
    code = raised.value.error_code
    return str(getattr(code, "value", code))


def test_blobs_are_copied_whole(target: ContainerClient, url: str) -> None:
    for name, is_sync in (("copy", None), ("sync", True)):
        blob = target.get_blob_client(name)
        copied = blob.start_copy_from_url(url, requires_sync=is_sync)
        assert copied["copy_status"] == "success"
        assert blob.download_blob().readall() == LONG
        found = blob.get_blob_properties()
        assert found.metadata == {"k": "v"}
        assert "sig=" not in (found.copy.source or "sig=")
    blob = target.get_blob_client("put")
    blob.upload_blob_from_url(url)
    assert blob.download_blob().readall() == LONG


def test_blocks_appends_and_pages_are_copied(target: ContainerClient, url: str) -> None:
    blocks = target.get_blob_client("blocks")
    blocks.stage_block_from_url("1", url, source_offset=0, source_length=1000)
    blocks.commit_block_list([BlobBlock("1")])
    log = target.get_blob_client("log")
    log.create_append_blob()
    log.append_block_from_url(url, source_offset=1000, source_length=500)
    pages = target.get_blob_client("pages")
    pages.create_page_blob(1024)
    pages.upload_pages_from_url(url, offset=512, length=512, source_offset=0)

    assert blocks.download_blob().readall() == LONG[:1000]
    assert log.download_blob().readall() == LONG[1000:1500]
    assert pages.download_blob().readall() == bytes(512) + LONG[:512]


def test_a_copy_with_another_checksum_changes_nothing(target: ContainerClient, url: str) -> None:
    blob = target.get_blob_client("checked")
    right = base64.b64encode(hashlib.md5(LONG).digest()).decode()
    wrong = base64.b64encode(bytes(16)).decode()
    sums = {"x-ms-source-content-md5": right}
    blob.start_copy_from_url(url, requires_sync=True, headers=sums)

    with pytest.raises(HttpResponseError) as refused:
        blob.start_copy_from_url(
            url,
            requires_sync=True,
            headers={"x-ms-source-content-md5": wrong},
            metadata={"other": "yes"},
        )

    assert code_of(refused) == "Md5Mismatch"
    assert blob.get_blob_properties().metadata == {"k": "v"}


def test_a_source_that_is_missing_or_closed_is_refused(target: ContainerClient, url: str) -> None:
    blob = target.get_blob_client("refused")
    for bad, status in ((url.replace("a%20b", "none"), 403), (url.partition("?")[0], 404)):
        with pytest.raises(HttpResponseError) as refused:
            blob.upload_blob_from_url(bad)
        assert (refused.value.status_code, code_of(refused)) == (status, "CannotVerifyCopySource")
    with pytest.raises(HttpResponseError) as changed:
        blob.upload_blob_from_url(url, source_if_unmodified_since=datetime(2020, 1, 1, tzinfo=UTC))
    assert (changed.value.status_code, code_of(changed)) == (412, "CannotVerifyCopySource")
    assert not blob.exists()


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:1/a",
        "https://example.org/a",
        "http://[::1]:1/a",
    ],
)
def test_hosts_that_are_not_allowed_are_refused(target: ContainerClient, address: str) -> None:
    blob = target.get_blob_client("refused")
    with pytest.raises(HttpResponseError) as refused:
        blob.start_copy_from_url(address)
    assert (refused.value.status_code, code_of(refused)) == (403, "CannotVerifyCopySource")
