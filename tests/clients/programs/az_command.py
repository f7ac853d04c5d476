import json
import os
import pathlib
import subprocess
import tempfile

FOLDER = tempfile.TemporaryDirectory()
ENVIRONMENT = os.environ | {
    "AZURE_CONFIG_DIR": FOLDER.name,
    "AZURE_CORE_COLLECT_TELEMETRY": "false",
    "AZURE_CORE_ONLY_SHOW_ERRORS": "true",
}


def az(*words: str) -> object:
    done = subprocess.run(
        ["az", "storage", *words], env=ENVIRONMENT, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout or "null")


picture = pathlib.Path(FOLDER.name, "00010.png")
picture.write_bytes(b"\x89PNG")
az("container", "create", "--name", "az-photos")
az("blob", "upload", "--container-name", "az-photos", "--name", "1.png", "--file", str(picture))
listed = az("blob", "list", "--container-name", "az-photos")
assert [each["name"] for each in listed] == ["1.png"]
az("queue", "create", "--name", "az-work")
az("message", "put", "--queue-name", "az-work", "--content", "archive 00010")
assert [each["content"] for each in az("message", "get", "--queue-name", "az-work")] == [
    "archive 00010"
]
az("table", "create", "--name", "AzStaff")
entity = ["PartitionKey=Sales", "RowKey=00010", "Name=Ken"]
az("entity", "insert", "--table-name", "AzStaff", "--entity", *entity)
found = az("entity", "query", "--table-name", "AzStaff", "--filter", "PartitionKey eq 'Sales'")
assert [each["Name"] for each in found["items"]] == ["Ken"]
