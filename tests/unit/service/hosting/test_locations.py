"""Places of accounts as texts: connection strings, URLs with a signature, folders."""

import pytest

from partita.errors import ConfigurationError
from partita.service.hosting.locations import Remote, parse

SIGNED = "sv=2019-02-02&sig=abc"


@pytest.mark.parametrize("service", ["tables", "queues", "blobs"])
def test_a_signed_url_on_an_unusual_port_is_of_the_service_that_is_wanted(service: str) -> None:
    found = parse(f"http://storage:40000/acct?{SIGNED}", service)

    assert isinstance(found, Remote)
    assert found.endpoints == {service: "http://storage:40000/acct"}
    assert (found.account, found.sas) == ("acct", SIGNED)


def test_a_signed_url_on_a_usual_port_is_of_the_service_of_the_port() -> None:
    with pytest.raises(ConfigurationError, match="TableEndpoint"):
        parse(f"http://127.0.0.1:10000/acct?{SIGNED}", "tables")
