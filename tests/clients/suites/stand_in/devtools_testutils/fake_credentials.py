"""The accounts of the server under test, and credentials that are not valid."""

import base64
import hashlib
from typing import Any

from azure.core.credentials import AccessToken

ACCOUNTS = {
    "storage": "pystorage",
    "secondary_storage": "pysecondary",
    "blob_storage": "pyblob",
    "versioned_storage": "pyversioned",
    "premium_storage": "pypremium",
    "soft_delete_storage": "pysoftdelete",
    "tables": "pytables",
}
KEYS = {
    name: base64.b64encode(hashlib.sha512(name.encode()).digest()).decode()
    for name in ACCOUNTS.values()
}
STORAGE_ACCOUNT_FAKE_KEY = KEYS["pystorage"]


class FakeTokenCredential:
    def __init__(self) -> None:
        self.token = AccessToken("YOU SHALL NOT PASS", 0)
        self.get_token_count = 0

    def get_token(self, *_: Any, **__: Any) -> AccessToken:
        self.get_token_count += 1
        return self.token
