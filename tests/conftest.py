"""What all tests share: how Hypothesis judges a machine that it has not to itself."""

from hypothesis import HealthCheck, settings

# Both measure the machine, not the code: other tests run beside on its two cores.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
