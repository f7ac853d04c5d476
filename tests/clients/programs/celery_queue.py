import os
import threading

from celery import Celery
from celery.result import allow_join_result

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
parts = dict(part.split("=", 1) for part in text.split(";"))
broker = f"azurestoragequeues://{parts['AccountKey']}@{parts['QueueEndpoint']}"
app = Celery("work", broker=broker, backend=f"azureblockblob://{text}")
app.conf.update(
    azureblockblob_container_name="celery",
    worker_pool="solo",
    broker_transport_options={"queue_name_prefix": "celery-", "polling_interval": 0.1},
    task_default_queue="work",
)


@app.task
def add(left: int, right: int) -> int:
    return left + right


worker = app.Worker(
    pool="solo", without_heartbeat=True, without_gossip=True, without_mingle=True, quiet=True
)
threading.Thread(target=worker.start, daemon=True).start()
with allow_join_result():
    assert [each.get(timeout=60) for each in [add.delay(number, 1) for number in range(3)]] == [
        1,
        2,
        3,
    ]
os._exit(0)  # the worker has no other way to end in a thread
