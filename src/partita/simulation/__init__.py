"""Loop, disk, network and log for deterministic tests; nothing imports it but tests."""
