"""The web applications of docs/recipes, run as their pages save them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.sources import PROJECT
from support.cluster import Cluster, free_port

RECIPES = PROJECT / "docs" / "recipes"


def save(page: str, folder: Path) -> None:
    text = (RECIPES / page).read_text("utf-8")
    for name, block in re.findall(
        r"^```python (\S+\.py)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        (folder / name).write_text(block, "utf-8")


def run(program: str, folder: Path, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)} | variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


STATE = """
import asyncio, httpx
from app import app, make_app
from partita.errors import StoreBusyError, UsageError

def client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app")

async def twice():
    made = app()
    async with made.router.lifespan_context(made), client(made) as http:
        for _ in range(2):
            answer = await http.post("/visits/ada", headers={"Idempotency-Key": "7f3a"})
            assert answer.json() == 1, answer.text
        assert (await http.post("/visits/ada")).json() == 2
        assert (await http.get("/readyz")).json() == {"is_primary": True}
        too_long = {"Idempotency-Key": "k" * 5000}
        assert (await http.post("/visits/ada", headers=too_long)).status_code == 400

        @made.get("/busy")
        def busy():
            raise StoreBusyError("StoreBusy", "Busy.")

        answer = await http.get("/busy")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["code"] == "StoreBusy"

async def later():
    made = app()
    async with made.router.lifespan_context(made), client(made) as http:
        assert (await http.get("/visits/ada")).json() == 2

asyncio.run(twice())
asyncio.run(later())
"""


def test_fastapi_keeps_its_state_and_answers_errors(tmp_path: Path) -> None:
    save("fastapi-state.md", tmp_path)

    run(STATE, tmp_path)


FORWARDED = """
import asyncio, os, httpx
from app import make_app

async def main():
    apps = {
        f"app{n}:80": make_app(os.environ["STATE"], partition="visits", address=f"app{n}:80")
        for n in (1, 2)
    }
    transports = {
        f"all://{at.partition(':')[0]}": httpx.ASGITransport(app) for at, app in apps.items()
    }
    async with apps["app1:80"].router.lifespan_context(None), \\
            apps["app2:80"].router.lifespan_context(None), \\
            httpx.AsyncClient(mounts=transports, follow_redirects=True, timeout=60) as http:
        roles = [(await http.get(f"http://app{n}/readyz")).json()["is_primary"] for n in (1, 2)]
        assert sorted(roles) == [False, True], roles
        for n in (1, 2):
            answer = await http.post(f"http://app{n}/visits/ada")
            assert answer.json() == n, answer.text
            assert answer.url.host == f"app{roles.index(True) + 1}"

asyncio.run(main())
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path / "nats", port=free_port())
    started.start()
    yield started
    started.stop()


@pytest.mark.proof
def test_fastapi_forwards_writes_to_the_primary(cluster: Cluster, tmp_path: Path) -> None:
    save("fastapi-state.md", tmp_path)

    run(FORWARDED, tmp_path, STATE=cluster.url)


SHARDS_FASTAPI = """
import asyncio, httpx, model
manager = model.create()
from fastapi_app import app

async def main():
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), \\
            httpx.AsyncClient(transport=transport, base_url="http://app") as http:
        for tenant in (7, 150):
            answer = await http.put(f"/tenants/{tenant}/blog", params={"name": f"Blog {tenant}"})
            assert answer.json() == f"Blog {tenant}", answer.text
        assert (await http.get("/tenants/7/blog")).json() == "Blog 7"
        assert (await http.get("/tenants/999/blog")).status_code == 404

        tenants = model.tenants_of(manager)
        offline = tenants.set_offline(tenants.get(7))
        asking = asyncio.create_task(http.get("/tenants/7/blog"))
        await asyncio.sleep(0.3)
        assert not asking.done()  # it waits for the tenant to come back
        tenants.set_online(offline)
        assert (await asking).json() == "Blog 7"

asyncio.run(main())
manager.close()
"""


def test_fastapi_waits_for_a_tenant_that_is_moved(tmp_path: Path) -> None:
    save("web-shards.md", tmp_path)

    run(SHARDS_FASTAPI, tmp_path)


SHARDS_FLASK = """
import model
manager = model.create()
from flask_app import app
http = app.test_client()
assert http.put("/tenants/7/blog/Seas").text == "Seas"
assert http.get("/tenants/7/blog").text == "Seas"
assert http.get("/tenants/8/blog").text == ""
assert http.get("/tenants/999/blog").status_code == 404
tenants = model.tenants_of(manager)
offline = tenants.set_offline(tenants.get(7))
answer = http.get("/tenants/7/blog")
assert (answer.status_code, answer.json["code"]) == (503, "MappingOffline")
manager.close()
"""


def test_flask_answers_for_tenants(tmp_path: Path) -> None:
    save("web-shards.md", tmp_path)

    run(SHARDS_FLASK, tmp_path)
