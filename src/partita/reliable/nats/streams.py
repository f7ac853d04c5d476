"""The three streams of a partition: created if they are not there, and checked to be ours.

A stream that Partita did not create, or that was created with other settings, is refused and
left as it is. Processes that open a partition at the same time all get the same streams.
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
    """Create the stream or find it as it was created; refuse any other."""
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
            "The NATS cluster did not open the log in time: too few of its nodes answer.",
            facts={"stream": wanted["name"], "cause": str(error)},
            hint="Start the nodes that are down; a majority is needed.",
        ) from error
    check_ours(wanted, answer.config)


async def _look_or_create(api: Api, wanted: dict[str, Any], timeout: float) -> StreamAnswer:
    name = wanted["name"]
    passing: Failed | None = None
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
                    if not _passes(failure):
                        raise _refused(wanted, failure) from failure
                    passing = failure
                await asyncio.sleep(PAUSE_SECONDS)
    except NoAnswer:
        if passing is None:
            raise
        # It did not pass in time: what the cluster said last is the reason, not our waiting.
        raise _refused(wanted, passing) from passing


def _passes(failure: Failed) -> bool:
    """True for what time may mend: somebody else creates it, or a node is being restarted."""
    is_offline = failure.code == NO_PEERS and "offline" in str(failure)
    return failure.code == NAME_IN_USE or is_offline


def check_ours(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """Refuse another's stream, and one of ours that was made otherwise."""
    marks = found.get("metadata") or {}
    if any(marks.get(name) != value for name, value in wanted["metadata"].items()):
        raise ConfigurationError(
            "ForeignStream",
            "A stream of this name exists that Partita did not create; it was not touched.",
            facts={"stream": wanted["name"]},
            hint="Choose another partition name, or remove that stream if nobody needs it.",
        )
    names = [name for name in _CHECKED if name in wanted and wanted[name] != found.get(name)]
    if names:
        raise ConfigurationError(
            "StreamDiffers",
            "The partition's stream was created with other settings.",
            facts={"stream": wanted["name"]}
            | {name: f"{found.get(name)} instead of {wanted[name]}" for name in names},
            hint="Open it as it was created, or change the stream with the NATS tools first.",
        )


def _refused(wanted: dict[str, Any], failure: Failed) -> PartitaError:
    """Say why a stream could not be opened or created."""
    replicas = wanted["num_replicas"]
    facts = {"stream": wanted["name"], "replicas": replicas, "cause": str(failure)}
    if failure.code in (NO_PEERS, NOT_CLUSTERED):
        return QuorumLostError(
            "TooFewNodes",
            f"The NATS cluster has fewer running JetStream nodes than {replicas}.",
            facts=facts,
            hint="Start the missing nodes; `partita nats up` starts three. replicas=1 is for"
            " development on one node.",
        )
    if failure.code == SUBJECT_OVERLAP:
        return ConfigurationError(
            "ForeignStream",
            "Another stream already takes the subjects of this partition; it was not touched.",
            facts=facts,
            hint="Choose another partition name, or remove that stream if nobody needs it.",
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
        hint="See what the server says of it in its own log.",
    )
