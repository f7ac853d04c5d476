import model

model.create()
import django_app  # noqa: E402, F401 - after the catalog exists
from django.test import Client  # noqa: E402

http = Client(raise_request_exception=False)
assert http.put("/tenants/7/blog", "Seas").content == b"Seas"
assert http.get("/tenants/7/blog").content == b"Seas"
answer = http.get("/tenants/999/blog")
assert (answer.status_code, answer.json()["code"]) == (404, "MappingNotFound")
