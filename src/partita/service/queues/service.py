"""The queue service: decode → authorize → perform → answer."""

from collections.abc import Sequence
from typing import assert_never

from partita.errors import InvalidKeyError, PartitaError, QueueNotFoundError, UsageError
from partita.policies import Policy
from partita.queues.engine import QueueEngine
from partita.queues.message import Message
from partita.service.accounts import service_documents
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.accounts.account import Account
from partita.service.accounts.respond import NOTHING_USUAL, AuthorizedRequest, read_only
from partita.service.auth.sas import Sas
from partita.service.formats.error_wire import encode_error
from partita.service.http.request import Request, Response
from partita.service.http.turns import computed
from partita.service.queues import answers, wire

DEFAULT_VERSION = "2026-10-06"
"""The API version of requests without one: the version of the current Python SDK."""
_XML = ("Content-Type", "application/xml")


class QueueService:
    """Answers requests for the queues of an account."""

    letter = "q"
    name = "queue"
    default_version = DEFAULT_VERSION
    allows_anonymous = False
    usual = NOTHING_USUAL

    async def policies(self, account: Account, sas: Sas) -> Sequence[Policy]:
        try:
            return await account.queues.get_policies(sas.container)
        except (InvalidKeyError, QueueNotFoundError):
            return []

    async def answer(self, authorized: AuthorizedRequest) -> Response:
        call = wire.decode(
            authorized.request, authorized.target.path, authorized.pairs, authorized.version
        )
        observed = authorized.request.observe()
        observed.account = authorized.account.name
        observed.call, observed.operation = call, wire.OPERATIONS[type(call)]
        if authorized.target.is_secondary and not isinstance(call, wire.READS):
            raise read_only()
        authorized.grant.check(call.need())
        return await self._perform(call, authorized)

    async def _perform(  # noqa: PLR0911, PLR0912 - one honest switch over the calls
        self, call: wire.QueueCall, authorized: AuthorizedRequest
    ) -> Response:
        queues = authorized.account.queues
        match call:
            case wire.PutMessage():
                message = await queues.put(
                    call.queue,
                    await _text_of(call, queues),
                    hidden_seconds=call.hidden_seconds,
                    lifetime_seconds=call.lifetime_seconds,
                )
                if authorized.version < wire.ANSWERED_PUT_VERSION:
                    return Response(201)
                return answers.put_answer(message)
            case wire.GetMessages():
                messages = await queues.get(
                    call.queue, limit=call.limit, hidden_seconds=call.hidden_seconds
                )
                return await computed(_weight(messages), answers.got_answer, messages)
            case wire.DeleteMessage():
                await queues.delete(call.queue, call.message_id, call.receipt)
                return Response(204)
            case wire.UpdateMessage():
                message = await queues.update(
                    call.queue,
                    call.message_id,
                    call.receipt,
                    hidden_seconds=call.hidden_seconds,
                    text=wire.find_text(call.body) if call.body else None,
                )
                return answers.updated_answer(message)
            case wire.PeekMessages():
                messages = await queues.peek(call.queue, limit=call.limit)
                return await computed(_weight(messages), answers.peeked_answer, messages)
            case wire.ClearMessages():
                await queues.clear(call.queue)
                return Response(204)
            case wire.CreateQueue():
                is_new = await queues.create_queue(call.queue, call.metadata)
                return Response(201 if is_new else 204)
            case wire.DeleteQueue():
                await queues.delete_queue(call.queue)
                return Response(204)
            case wire.GetMetadata():
                return answers.metadata_answer(await queues.get_queue(call.queue))
            case wire.SetMetadata():
                await queues.set_metadata(call.queue, call.metadata)
                return Response(204)
            case wire.GetQueuePolicies():
                policies = await queues.get_policies(call.queue)
                return Response(200, [_XML], xml_wire.print_policies(policies))
            case wire.SetQueuePolicies():
                wanted = xml_wire.parse_policies(call.body, self.letter)
                await queues.set_policies(call.queue, wanted)
                return Response(204)
            case wire.ListQueues():
                account = authorized.target.account
                page = await queues.list_queues(
                    prefix=call.prefix,
                    start=answers.parse_marker(call.marker, account),
                    limit=call.limit,
                )
                count = sum(1 + len(queue.metadata) for queue in page.queues)
                return await computed(
                    count, answers.page_answer, page, call, authorized.target.root, account
                )
            case wire.GetQueueProperties():
                return await service_documents.get_properties(authorized, self.letter)
            case wire.SetQueueProperties():
                return await service_documents.set_properties(
                    authorized, self.letter, authorized.request.body
                )
            case wire.GetQueueStatistics():
                return service_documents.get_statistics(authorized)
            case wire.GetQueueDelegationKey():
                return service_documents.get_user_delegation_key(authorized, call.key, self.letter)
            case _:
                assert_never(call)

    def is_cacheable(self, request: Request) -> bool:
        return request.method not in ("GET", "HEAD")

    def refuse(
        self, error: PartitaError, message: str, request: Request, extra: list[tuple[str, str]]
    ) -> Response:
        return encode_error(error, message, request, extra)


def _weight(messages: Sequence[Message]) -> int:
    """Return how much escaping the texts takes: 256 characters count as one item."""
    return sum(len(message.text) for message in messages) // 256


async def _text_of(call: wire.PutMessage, queues: QueueEngine) -> str:
    try:
        return wire.parse_message(call.body)
    except UsageError:
        await queues.get_queue(call.queue)  # a missing queue is reported first
        raise
