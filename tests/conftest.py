"""What all tests share: how Hypothesis judges a busy machine, and which tests are proofs."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from support.proofs import is_proof
from support.repeats import repeat

# The deadline and the check measure the machine, not the code: other tests run at the same time.
settings.register_profile(
    "shared",
    deadline=None,
    max_examples=repeat(15, 100, 100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared")


@pytest.hookimpl(tryfirst=True)  # before the marks of `-m` are compared
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    numbers: Counter[str] = Counter()
    for item in items:
        name, _, variant = item.name.partition("[")
        test = item.nodeid.partition("[")[0]
        number = numbers[test]
        numbers[test] += 1
        if is_proof(item.path, name, variant.removesuffix("]"), number):
            item.add_marker(pytest.mark.proof)
        elif getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.repeated)  # `make proof` runs it with all its examples
