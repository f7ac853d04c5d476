"""How the services are reached: sockets, ASGI, clients in this process."""
