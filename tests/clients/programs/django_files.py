import os

import django
from azure.storage.blob import BlobServiceClient
from django.conf import settings
from django.core.files.base import ContentFile

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("media")
options = {"connection_string": text, "azure_container": "media"}
settings.configure(
    STORAGES={
        "default": {"BACKEND": "storages.backends.azure_storage.AzureStorage", "OPTIONS": options}
    }
)
django.setup()
from django.core.files.storage import default_storage  # noqa: E402

name = default_storage.save("photos/ken.png", ContentFile(b"\x89PNG"))
again = default_storage.save("photos/ken.png", ContentFile(b"\x89PNG2"))
assert name == "photos/ken.png"
assert again != name
assert default_storage.open(name).read() == b"\x89PNG"
assert default_storage.listdir("photos") == ([], sorted([name, again]))
assert default_storage.size(again) == 5
default_storage.delete(name)
assert not default_storage.exists(name)
