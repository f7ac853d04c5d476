"""Network addresses; pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address; unknown names are not trusted."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
