"""The names for asynchronous tests."""

from devtools_testutils import recorded_by_proxy

recorded_by_proxy_async = recorded_by_proxy
