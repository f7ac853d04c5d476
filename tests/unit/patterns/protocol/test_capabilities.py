"""What an endpoint can do is known from its address; a place is read from its text."""

import pytest

from partita.errors import ConfigurationError, NotOrderedError, NotSupportedError
from partita.patterns.ports.connecting import remote_capabilities
from partita.patterns.protocol.capabilities import COSMOS, ORDERED, Capabilities, capabilities_of
from partita.service.hosting.locations import Folder, Remote, parse

KEY = "a2V5"


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://contoso.table.core.windows.net",
        "https://contoso.table.core.chinacloudapi.cn/",
        "http://127.0.0.1:10002/devstoreaccount1",
        "http://localhost:10002/devstoreaccount1",
        "https://cosmos.table.core.windows.net",
    ],
)
def test_table_storage_sorts(endpoint: str) -> None:
    assert capabilities_of(endpoint) == ORDERED


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://contoso.table.cosmos.azure.com:443/",
        "https://contoso.table.cosmosdb.azure.com",
        "https://CONTOSO.TABLE.COSMOS.AZURE.COM",
        "http://localhost:8902/",
    ],
)
def test_cosmos_gives_no_order_and_has_no_queues_and_blobs(endpoint: str) -> None:
    found = capabilities_of(endpoint)

    assert (found.is_ordered, found.has_queues, found.has_blobs) == (False, False, False)


def test_what_needs_order_is_refused_with_its_name() -> None:
    with pytest.raises(NotOrderedError, match=r"latest\(\) requires .* Cosmos DB") as caught:
        COSMOS.require_ordered("latest()")

    assert caught.value.code == "NotOrdered"
    ORDERED.require_ordered("latest()")


def test_an_absent_service_is_refused_with_the_missing_member() -> None:
    tables_alone = Capabilities(has_queues=False, has_blobs=False)

    with pytest.raises(NotSupportedError, match="QueueEndpoint"):
        tables_alone.require_queues("An outbox")
    with pytest.raises(NotSupportedError, match="BlobEndpoint"):
        tables_alone.require_blobs("InBlob")


def test_what_cosmos_has_not_is_not_to_be_had_by_another_string() -> None:
    for require in (COSMOS.require_queues, COSMOS.require_blobs, COSMOS.require_signatures):
        with pytest.raises(NotSupportedError) as refused:
            require("This")

        assert "separate storage account" in refused.value.hint


# Places


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("partita:./folder", "./folder"),
        ("partita:/var/lib/app", "/var/lib/app"),
        ("partita:C:/app", "C:/app"),
        ("partita::memory:", None),
    ],
)
def test_a_folder_is_named_behind_the_scheme(text: str, path: str | None) -> None:
    assert parse(text) == Folder(path)


def test_the_development_storage_is_the_well_known_account_on_three_ports() -> None:
    found = parse("UseDevelopmentStorage=true")

    assert isinstance(found, Remote)
    assert found.account == "devstoreaccount1"
    assert found.endpoints == {
        "blobs": "http://127.0.0.1:10000/devstoreaccount1",
        "queues": "http://127.0.0.1:10001/devstoreaccount1",
        "tables": "http://127.0.0.1:10002/devstoreaccount1",
    }


def test_the_development_storage_may_be_on_another_machine() -> None:
    found = parse("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://emulator")

    assert isinstance(found, Remote)
    assert found.endpoints["tables"] == "http://emulator:10002/devstoreaccount1"


def test_the_other_machine_may_have_an_address_of_ipv6() -> None:
    found = parse("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://[fd00::7]")

    assert isinstance(found, Remote)
    assert found.endpoints["queues"] == "http://[fd00::7]:10001/devstoreaccount1"


def test_the_string_of_a_storage_account_names_three_services_by_its_suffix() -> None:
    found = parse(
        f"DefaultEndpointsProtocol=https;AccountName=contoso;AccountKey={KEY}==;"
        "EndpointSuffix=core.windows.net"
    )

    assert isinstance(found, Remote)
    assert found.key == f"{KEY}=="
    assert found.endpoints == {
        "tables": "https://contoso.table.core.windows.net",
        "queues": "https://contoso.queue.core.windows.net",
        "blobs": "https://contoso.blob.core.windows.net",
    }


def test_a_spelled_out_endpoint_goes_before_the_suffix() -> None:
    found = parse(
        f"AccountName=contoso;AccountKey={KEY};EndpointSuffix=core.windows.net;"
        "TableEndpoint=http://127.0.0.1:9/contoso"
    )

    assert isinstance(found, Remote)
    assert found.endpoints["tables"] == "http://127.0.0.1:9/contoso"
    assert found.endpoints["queues"] == "https://contoso.queue.core.windows.net"


def test_a_single_endpoint_means_that_the_others_are_absent() -> None:
    found = parse(f"AccountName=a1b;AccountKey={KEY};TableEndpoint=http://127.0.0.1:9/a1b")

    assert isinstance(found, Remote)
    assert not remote_capabilities(found).has_queues
    assert not remote_capabilities(found).has_blobs
    assert remote_capabilities(found).is_ordered


def test_the_string_of_cosmos_is_known_by_its_endpoint() -> None:
    found = parse(
        f"DefaultEndpointsProtocol=https;AccountName=contoso;AccountKey={KEY};"
        "TableEndpoint=https://contoso.table.cosmos.azure.com:443/;"
    )

    assert isinstance(found, Remote)
    assert remote_capabilities(found) == COSMOS


def test_a_signature_may_stand_in_place_of_the_key() -> None:
    found = parse(
        "TableEndpoint=https://c.table.core.windows.net;SharedAccessSignature=?sv=1&sig=x"
    )

    assert isinstance(found, Remote)
    assert (found.key, found.sas) == ("", "sv=1&sig=x")


def test_a_key_without_its_account_does_not_take_the_place_of_a_signature() -> None:
    found = parse(f"TableEndpoint=http://h;AccountKey={KEY};SharedAccessSignature=sv=1&sig=x")

    assert isinstance(found, Remote)
    assert (found.account, found.key, found.sas) == ("", "", "sv=1&sig=x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "./folder",
        "partita:",
        "https://contoso.table.core.windows.net",
        "AccountName=contoso",
        f"AccountKey={KEY}",
        f"AccountName=contoso;AccountKey={KEY};TableEndpoint=contoso",
        f"AccountName=contoso;AccountKey={KEY};QueueEndpoint=http://127.0.0.1:9/contoso",
        "UseDevelopmentStorage=false",
        "UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://:1",
        f"AccountName=contoso;AccountKey={KEY};TableEndpoint=http://h:99999",
        f"AccountName=contoso;AccountKey={KEY};TableEndpoint=http://[::1",
        f"AccountName=contoso;AccountKey={KEY};DefaultEndpointsProtocol=ftp",
        f"AccountName=con/toso;AccountKey={KEY}",
    ],
)
def test_a_bad_place_is_refused_with_examples_and_without_its_text(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)

    said = str(caught.value)
    assert caught.value.code == "PlaceUnreadable"
    for example in ("partita:./folder", "partita::memory:", "UseDevelopmentStorage=true"):
        assert example in said
    assert KEY not in said


def test_a_place_does_not_show_its_key() -> None:
    assert KEY not in repr(parse(f"AccountName=contoso;AccountKey={KEY}"))
