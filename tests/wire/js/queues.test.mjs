// The queue client of the SDK: queues, messages, receipts, tokens.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import {
  AccountSASPermissions,
  AccountSASResourceTypes,
  generateAccountSASQueryParameters,
  generateQueueSASQueryParameters,
  QueueClient,
  QueueSASPermissions,
  QueueServiceClient,
  StorageSharedKeyCredential,
} from "@azure/storage-queue";

const endpoint = process.env.PARTITA_QUEUE_ENDPOINT;
const credential = new StorageSharedKeyCredential(
  "devstoreaccount1",
  "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);
// A server error is a failure here, so nothing is tried again.
const options = { retryOptions: { maxTries: 1 } };
const service = new QueueServiceClient(endpoint, credential, options);

const aName = () => `q${randomUUID()}`;
const inAnHour = () => new Date(Date.now() + 3600 * 1000);

async function aQueue(metadata) {
  const queue = service.getQueueClient(aName());
  await queue.create({ metadata });
  return queue;
}

async function refuses(promise, statusCode, code) {
  await assert.rejects(promise, (error) => {
    assert.deepEqual([error.statusCode, error.code ?? error.details?.errorCode], [statusCode, code]);
    return true;
  });
}

test("a queue is created if it is not there, and deleted if it is", async () => {
  const queue = service.getQueueClient(aName());

  assert.equal((await queue.createIfNotExists()).succeeded, true);
  assert.equal((await queue.createIfNotExists()).succeeded, false);
  assert.equal(await queue.exists(), true);
  assert.equal((await queue.deleteIfExists()).succeeded, true);
  assert.equal((await queue.deleteIfExists()).succeeded, false);
  assert.equal(await queue.exists(), false);
});

test("a queue created again answers 204, and with other metadata 409", async () => {
  const queue = await aQueue({ of: "me" });

  assert.equal((await queue.create({ metadata: { of: "me" } }))._response.status, 204);
  await refuses(queue.create(), 409, "QueueAlreadyExists");
});

test("queue metadata and the count come back", async () => {
  const queue = await aQueue({ of: "me" });
  await queue.sendMessage("x");
  const first = await queue.getProperties();
  await queue.setMetadata({ other: "1" });
  const second = await queue.getProperties();

  assert.deepEqual([first.metadata, first.approximateMessagesCount], [{ of: "me" }, 1]);
  assert.deepEqual(second.metadata, { other: "1" });
});

test("queues are listed in pages", async () => {
  const prefix = aName();
  const names = ["-a", "-b", "-c"].map((end) => prefix + end);
  for (const name of names) await service.createQueue(name, { metadata: { of: name } });

  const pages = [];
  const listing = service.listQueues({ prefix, includeMetadata: true });
  for await (const page of listing.byPage({ maxPageSize: 2 })) pages.push(page.queueItems);

  assert.deepEqual(
    pages.map((page) => page.map((item) => [item.name, item.metadata.of])),
    [[[names[0], names[0]], [names[1], names[1]]], [[names[2], names[2]]]],
  );
});

test("a message is sent, received, hidden and deleted", async () => {
  const queue = await aQueue();
  const sent = await queue.sendMessage("archive 00010");
  const { receivedMessageItems } = await queue.receiveMessages({ visibilityTimeout: 30 });
  const [message] = receivedMessageItems;

  assert.equal(message.messageId, sent.messageId);
  assert.deepEqual([message.messageText, message.dequeueCount], ["archive 00010", 1]);
  assert.ok(message.nextVisibleOn > new Date());
  assert.deepEqual((await queue.receiveMessages()).receivedMessageItems, []);
  await queue.deleteMessage(message.messageId, message.popReceipt);
  await refuses(
    queue.deleteMessage(message.messageId, message.popReceipt), 404, "MessageNotFound",
  );
});

test("messages are received in their order", async () => {
  const queue = await aQueue();
  for (const text of ["1", "2", "3"]) await queue.sendMessage(text);

  const { receivedMessageItems } = await queue.receiveMessages({ numberOfMessages: 32 });

  assert.deepEqual(receivedMessageItems.map((item) => item.messageText), ["1", "2", "3"]);
});

test("peeked messages have no receipt", async () => {
  const queue = await aQueue();
  await queue.sendMessage("x");

  const { peekedMessageItems } = await queue.peekMessages({ numberOfMessages: 5 });

  assert.deepEqual(peekedMessageItems.map((item) => [item.messageText, item.popReceipt]), [
    ["x", undefined],
  ]);
});

test("a message is updated, with a text and without", async () => {
  const queue = await aQueue();
  await queue.sendMessage("old");
  let [message] = (await queue.receiveMessages()).receivedMessageItems;
  let updated = await queue.updateMessage(message.messageId, message.popReceipt, "new", 0);
  await refuses(
    queue.deleteMessage(message.messageId, message.popReceipt), 404, "MessageNotFound",
  );
  updated = await queue.updateMessage(message.messageId, updated.popReceipt, undefined, 0);
  assert.ok(updated.nextVisibleOn instanceof Date);

  [message] = (await queue.receiveMessages()).receivedMessageItems;
  assert.deepEqual([message.messageText, message.dequeueCount], ["new", 2]);
});

test("a message that never expires says so", async () => {
  const queue = await aQueue();

  const sent = await queue.sendMessage("x", { messageTimeToLive: -1 });

  assert.equal(sent.expiresOn.toISOString(), "9999-12-31T23:59:59.000Z");
});

for (const text of ["", " a b ", "<&>\"'", "é中😀", "x".repeat(65536)]) {
  test(`a text comes back as it was: ${JSON.stringify(text.slice(0, 9))}`, async () => {
    const queue = await aQueue();
    await queue.sendMessage(text);

    const { peekedMessageItems } = await queue.peekMessages();

    assert.equal(peekedMessageItems[0].messageText, text);
  });
}

test("a message that is too large is refused", async () => {
  const queue = await aQueue();

  await refuses(queue.sendMessage("x".repeat(65537)), 413, "RequestBodyTooLarge");
});

test("cleared messages are gone", async () => {
  const queue = await aQueue();
  await queue.sendMessage("x");
  await queue.clearMessages();

  assert.deepEqual((await queue.peekMessages()).peekedMessageItems, []);
});

test("access policies are kept", async () => {
  const queue = await aQueue();
  const expiresOn = inAnHour();
  await queue.setAccessPolicy([
    { id: "one", accessPolicy: { startsOn: new Date(0), expiresOn, permissions: "raup" } },
  ]);

  const { signedIdentifiers } = await queue.getAccessPolicy();

  assert.equal(signedIdentifiers.length, 1);
  assert.equal(signedIdentifiers[0].accessPolicy.permissions, "raup");
  assert.equal(signedIdentifiers[0].accessPolicy.expiresOn.getTime(), expiresOn.getTime());
});

test("a queue token may what its letters say", async () => {
  const queue = await aQueue();
  const token = generateQueueSASQueryParameters(
    { queueName: queue.name, permissions: QueueSASPermissions.parse("a"), expiresOn: inAnHour() },
    credential,
  );
  const limited = new QueueClient(`${endpoint}/${queue.name}?${token}`, undefined, options);

  await limited.sendMessage("x");
  await refuses(limited.peekMessages(), 403, "AuthorizationPermissionMismatch");
  await assert.rejects(limited.delete(), (error) => error.statusCode === 403);
});

test("an account token for messages deletes messages", async () => {
  const queue = await aQueue();
  const token = generateAccountSASQueryParameters(
    {
      permissions: AccountSASPermissions.parse("ap"),
      services: "q",
      resourceTypes: AccountSASResourceTypes.parse("o").toString(),
      expiresOn: inAnHour(),
    },
    credential,
  );
  const limited = new QueueClient(`${endpoint}/${queue.name}?${token}`, undefined, options);
  await limited.sendMessage("x");
  const [message] = (await limited.receiveMessages()).receivedMessageItems;

  await limited.deleteMessage(message.messageId, message.popReceipt);

  assert.equal((await queue.getProperties()).approximateMessagesCount, 0);
});

test("service properties of queues are read", async () => {
  const properties = await service.getProperties();

  assert.equal(properties.hourMetrics.version, "1.0");
});
