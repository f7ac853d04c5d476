"""Back up, restore and verify whole accounts while they are served; no request depends on this."""
