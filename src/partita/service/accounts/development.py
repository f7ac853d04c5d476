"""The account of every emulator, and where a server has it by default; constants only."""

DEVELOPMENT_ACCOUNT = "devstoreaccount1"
DEVELOPMENT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The public key of every emulator and SDK."""

PORTS = {"blobs": 10000, "queues": 10001, "tables": 10002}
"""The default ports of the services."""
ENDPOINTS = {name: f"http://127.0.0.1:{port}/{DEVELOPMENT_ACCOUNT}" for name, port in PORTS.items()}
"""The addresses that clients are given: the defaults of `partita serve`."""
