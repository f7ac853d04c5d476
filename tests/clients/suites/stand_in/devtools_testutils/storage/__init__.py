"""The names for the suites of queues and blobs."""

import logging
import math
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

from devtools_testutils import AzureRecordedTestCase
from devtools_testutils.fake_credentials import STORAGE_ACCOUNT_FAKE_KEY

try:
    from azure.storage import blob as client
except ImportError:
    from azure.storage import queue as client  # type: ignore[no-redef]

logger = logging.getLogger("azure.storage")


def _keep(test: Any) -> Any:
    return test


def GenericTestProxyParametrize1() -> Any:  # noqa: N802 - the names of the suites
    return _keep


GenericTestProxyParametrize2 = GenericTestProxyParametrize1


class StorageRecordedTestCase(AzureRecordedTestCase):
    @classmethod
    def setup_class(cls) -> None:
        cls.logger = logger
        cls.sas_token = "?" + cls.generate_fake_sas_token()

    def setup_method(self, _: Any) -> None:
        logger.setLevel(logging.DEBUG)

    @staticmethod
    def generate_fake_sas_token() -> str:
        return str(
            client.generate_account_sas(
                account_name="test",
                account_key=STORAGE_ACCOUNT_FAKE_KEY,
                resource_types=client.ResourceTypes(object=True),
                permission=client.AccountSasPermissions(read=True, list=True),
                start=datetime.now(UTC) - timedelta(hours=24),
                expiry=datetime.now(UTC) + timedelta(days=8),
            )
        )

    def connection_string(self, account: str, key: Any) -> str:
        secret = getattr(key, "secret", key)
        return (
            f"DefaultEndpointsProtocol=https;AcCounTName={account};AccOuntKey={secret};"
            "EndpoIntSuffix=core.windows.net"
        )

    def account_url(self, account: str, kind: str) -> str:
        return f"https://{account}.{kind}.core.windows.net"

    def get_random_bytes(self, size: int) -> bytes:
        return b"a" * size

    def get_random_text_data(self, size: int) -> str:
        words = " hello world python"
        return words * math.ceil(size / len(words))

    def get_datetime_variable(
        self, variables: dict[str, str], name: str, value: datetime
    ) -> datetime:
        return datetime.fromisoformat(variables.setdefault(name, value.isoformat()))

    def assertNamedItemInContainer(self, container: Any, name: str, msg: Any = None) -> None:  # noqa: N802
        assert name in [getattr(each, "name", each) for each in container], msg

    def assertNamedItemNotInContainer(self, container: Any, name: str, msg: Any = None) -> None:  # noqa: N802
        assert name not in [getattr(each, "name", each) for each in container], msg

    def assert_upload_progress(
        self, size: int, chunk: int, progress: list[Any], unknown_size: bool = False
    ) -> None:
        assert len(progress) == math.ceil(size / chunk)
        assert {each[0] % chunk for each in progress} <= {0, size % chunk}
        assert {each[1] for each in progress} == {None if unknown_size else size}

    def assert_download_progress(
        self, size: int, chunk: int, first: int, progress: list[Any]
    ) -> None:
        rest = max(0, size - first)
        assert len(progress) == 1 + math.ceil(rest / chunk)
        assert {each[1] for each in progress} == {size}
        assert {each[0] % chunk for each in progress[1:]} <= {0, rest % chunk}


class LogCaptured:
    """The log of the SDK while it is open."""

    def __init__(self, _test: Any = None) -> None: ...

    def __enter__(self) -> StringIO:
        self._text = StringIO()
        self._handler = logging.StreamHandler(self._text)
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self._handler)
        return self._text

    def __exit__(self, *_: object) -> None:
        logger.removeHandler(self._handler)
        self._text.close()
