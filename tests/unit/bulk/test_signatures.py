"""The terms of shared access signatures."""

import pytest

from partita.bulk.signatures import SasTerms, sign_terms
from partita.clock import ManualClock
from partita.errors import ConfigurationError


@pytest.mark.parametrize("terms", [SasTerms(ip="10.0.0.1\nhttps"), SasTerms(policy="a\nb")])
def test_a_field_cannot_contain_the_end_of_a_field(terms: SasTerms) -> None:
    endpoints = {"tables": "http://127.0.0.1:10002/shop"}

    with pytest.raises(ConfigurationError):
        sign_terms(terms, "shop", "c2VjcmV0", endpoints, ManualClock().ticks())
