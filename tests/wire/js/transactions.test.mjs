import assert from "node:assert/strict";
import { test } from "node:test";
import { RestError, TableTransaction } from "@azure/data-tables";
import { aName, aTable, allOf, anEntity, open } from "./live.mjs";

const rowsOf = async (client) => (await allOf(client.listEntities())).map(({ rowKey }) => rowKey);

test("a transaction does every operation", async () => {
  const client = await aTable();
  for (const row of ["merged", "replaced", "gone"]) await client.createEntity(anEntity(row, { old: 1 }));
  const transaction = new TableTransaction();
  transaction.createEntity(anEntity("created"));
  transaction.updateEntity(anEntity("merged", { added: 2 }), "Merge");
  transaction.updateEntity(anEntity("replaced", { added: 2 }), "Replace");
  transaction.upsertEntity(anEntity("upserted", { added: 2 }), "Merge");
  transaction.deleteEntity("p", "gone");

  const { status, subResponses, getResponseForEntity } = await client.submitTransaction(transaction.actions);

  assert.equal(status, 202);
  assert.deepEqual(subResponses.map((part) => part.status), [204, 204, 204, 204, 204]);
  assert.equal(getResponseForEntity("created").etag, (await client.getEntity("p", "created")).etag);
  assert.deepEqual(await rowsOf(client), ["created", "merged", "replaced", "upserted"]);
  const merged = await client.getEntity("p", "merged");
  assert.deepEqual([merged.old, merged.added], [1, 2]);
  assert.equal((await client.getEntity("p", "replaced")).old, undefined);
});

test("a failing operation is named and nothing is done", async () => {
  const client = await aTable();
  await client.createEntity(anEntity("taken"));

  await assert.rejects(
    client.submitTransaction(["a", "b", "taken", "c"].map((row) => ["create", anEntity(row)])),
    (error) => {
      assert.ok(error instanceof RestError);
      assert.equal(error.statusCode, 409);
      assert.equal(error.code, "EntityAlreadyExists");
      assert.match(error.message, /^2:The specified entity already exists\./);
      return true;
    },
  );
  assert.deepEqual(await rowsOf(client), ["taken"]);
});

test("a stale etag in a transaction fails it", async () => {
  const client = await aTable();
  const { etag } = await client.createEntity(anEntity("r", { age: 1 }));
  await client.updateEntity(anEntity("r", { age: 2 }));

  await assert.rejects(
    client.submitTransaction([
      ["upsert", anEntity("other")],
      ["update", anEntity("r", { age: 3 }), "Merge", { etag }],
    ]),
    { statusCode: 412, code: "UpdateConditionNotSatisfied" },
  );
  assert.deepEqual(await rowsOf(client), ["r"]);
});

test("a hundred operations are done and one more is refused", async () => {
  const client = await aTable();
  const operations = Array.from({ length: 101 }, (_, row) => ["upsert", anEntity(String(row))]);

  await client.submitTransaction(operations.slice(0, 100));
  await assert.rejects(client.submitTransaction(operations), { statusCode: 400, code: "InvalidInput" });

  assert.equal((await rowsOf(client)).length, 100);
});

test("a transaction on a missing table is told so", async () => {
  await assert.rejects(open(aName()).submitTransaction([["create", anEntity("a")]]), {
    statusCode: 404,
    code: "TableNotFound",
  });
});

test("every type passes through a transaction", async () => {
  const client = await aTable();
  const sent = anEntity("r", {
    int64: -5n,
    moment: new Date("2020-01-01T00:00:00.000Z"),
    id: { type: "Guid", value: "c9da6455-213d-42c9-9a79-3e9149a57833" },
    text: "100%25 \r\n--changeset_\r\n\r\n",
  });

  await client.submitTransaction([["create", sent]]);

  const { int64, moment, id, text } = await client.getEntity("p", "r");
  assert.deepEqual(anEntity("r", { int64, moment, id, text }), sent);
});
