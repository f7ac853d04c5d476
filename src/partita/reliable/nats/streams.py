"""The three streams of a partition: created if they do not exist, otherwise verified.

A stream that Partita did not create, or that was created with other settings, is refused and not
changed. Processes that open a partition at the same time all get the same streams.
"""

import asyncio
from typing import Any

from partita.errors import ConfigurationError, PartitaError, QuorumLostError
from partita.reliable.nats.api import (
    NAME_IN_USE,
    NO_PEERS,
    NOT_CLUSTERED,
    NOT_ENABLED,
    SECOND,
    STREAM_NOT_FOUND,
    SUBJECT_OVERLAP,
    Api,
    Failed,
    StreamAnswer,
    deadline,
)
from partita.reliable.nats.link import PAUSE_SECONDS
from partita.reliable.replication.stream import NoAnswer

FORMAT = "1"
DUPLICATE_WINDOW_SECONDS = 600

_CHECKED = (
    "storage",
    "num_replicas",
    "discard",
    "deny_delete",
    "duplicate_window",
    "max_age",
    "max_msgs_per_subject",
)


def log_settings(name: str, subject: str, first_sequence: int = 1) -> dict[str, Any]:
    return {
        **({"first_seq": first_sequence} if first_sequence > 1 else {}),
        "name": name,
        "subjects": [subject],
        "deny_delete": True,
        "duplicate_window": DUPLICATE_WINDOW_SECONDS * SECOND,
        "max_age": 0,
    }


def register_settings(name: str, subject: str, seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "subjects": [subject],
        "max_age": int(seconds * SECOND),
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
    }


def file_settings(name: str, subjects: list[str]) -> dict[str, Any]:
    return {"name": name, "subjects": subjects, "allow_rollup_hdrs": True, "max_age": 0}


async def open_stream(
    api: Api, kind: str, partition: str, settings: dict[str, Any], *, replicas: int, timeout: float
) -> None:
    """Create the stream, or verify the existing one."""
    marks = {"partita.kind": kind, "partita.partition": partition, "partita.format": FORMAT}
    wanted = {
        **settings,
        "storage": "file",
        "discard": "new",
        "num_replicas": replicas,
        "metadata": marks,
        "description": f"Partita: {kind} of {partition}",
    }
    try:
        answer = await _look_or_create(api, wanted, timeout)
    except NoAnswer as error:
        raise QuorumLostError(
            "QuorumLost",
            "The NATS cluster did not open the log in time because too few nodes answer.",
            facts={"stream": wanted["name"], "cause": str(error)},
            hint="Start the NATS nodes that are down; a majority is needed.",
        ) from error
    check_ours(wanted, answer.config)


async def _look_or_create(api: Api, wanted: dict[str, Any], timeout: float) -> StreamAnswer:
    name = wanted["name"]
    temporary: Failed | None = None
    try:
        async with deadline(timeout):
            while True:
                try:
                    return await api.call(f"STREAM.INFO.{name}", {}, StreamAnswer, timeout)
                except Failed as failure:
                    if failure.code != STREAM_NOT_FOUND:
                        raise _refused(wanted, failure) from failure
                try:
                    return await api.call(f"STREAM.CREATE.{name}", wanted, StreamAnswer, timeout)
                except Failed as failure:
                    if not _is_temporary(failure):
                        raise _refused(wanted, failure) from failure
                    temporary = failure
                await asyncio.sleep(PAUSE_SECONDS)
    except NoAnswer:
        if temporary is None:
            raise
        # The last refusal of the cluster is the reason, not the time-out.
        raise _refused(wanted, temporary) from temporary


def _is_temporary(failure: Failed) -> bool:
    """Return whether to retry: another process creates it, or a node is being restarted."""
    is_offline = failure.code == NO_PEERS and "offline" in str(failure)
    return failure.code == NAME_IN_USE or is_offline


def check_ours(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise if the stream is foreign, or was created with other settings."""
    marks = found.get("metadata") or {}
    if any(marks.get(name) != value for name, value in wanted["metadata"].items()):
        raise ConfigurationError(
            "ForeignStream",
            "A stream of this name exists that Partita did not create; it was not changed.",
            facts={"stream": wanted["name"]},
            hint="Choose another partition name, or remove that stream if it is not needed.",
        )
    names = [name for name in _CHECKED if name in wanted and wanted[name] != found.get(name)]
    if names:
        raise ConfigurationError(
            "StreamDiffers",
            "The stream of the partition was created with other settings.",
            facts={"stream": wanted["name"]}
            | {name: f"{found.get(name)} instead of {wanted[name]}" for name in names},
            hint="Open it with the settings it was created with, or change it with the NATS tools.",
        )


def _refused(wanted: dict[str, Any], failure: Failed) -> PartitaError:
    """Return the error for a stream that could not be opened or created."""
    replicas = wanted["num_replicas"]
    facts = {"stream": wanted["name"], "replicas": replicas, "cause": str(failure)}
    if failure.code in (NO_PEERS, NOT_CLUSTERED):
        return QuorumLostError(
            "TooFewNodes",
            f"The NATS cluster has fewer than {replicas} running JetStream nodes.",
            facts=facts,
            hint="Start the missing nodes; `partita nats up` starts three. replicas=1 is for"
            " development on one node.",
        )
    if failure.code == SUBJECT_OVERLAP:
        return ConfigurationError(
            "ForeignStream",
            "Another stream uses the subjects of this partition; it was not changed.",
            facts=facts,
            hint="Choose another partition name, or remove that stream if it is not needed.",
        )
    if failure.code in NOT_ENABLED:
        return ConfigurationError(
            "JetStreamNotEnabled",
            "JetStream is not enabled on this NATS server or for this account.",
            facts=facts,
            hint="Add a jetstream block to every node, as `partita nats config` writes it.",
        )
    return ConfigurationError(
        "StreamNotOpened",
        "The NATS server refused to open the partition's stream.",
        facts=facts,
        hint="Check the log of the NATS server.",
    )
