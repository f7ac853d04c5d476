"""HTTP/1.1: connections, message bytes, bodies, `Request` and `Response`."""
