"""The names for asynchronous tests of queues and blobs."""

from devtools_testutils.storage import (
    GenericTestProxyParametrize1,
    GenericTestProxyParametrize2,
    StorageRecordedTestCase,
)

__all__ = ["AsyncStorageRecordedTestCase"]
__all__ += ["GenericTestProxyParametrize1", "GenericTestProxyParametrize2"]


class AsyncStorageRecordedTestCase(StorageRecordedTestCase):
    pass
