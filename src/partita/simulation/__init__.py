"""Loop, disk, network and log for deterministic tests; only tests import it."""
