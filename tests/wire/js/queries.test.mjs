import assert from "node:assert/strict";
import { test } from "node:test";
import { odata } from "@azure/data-tables";
import { aTable, allOf } from "./live.mjs";

async function filled() {
  const client = await aTable();
  for (const partitionKey of ["a", "b"]) {
    await client.submitTransaction(
      [0, 1, 2, 3, 4].map((age) => ["create", { partitionKey, rowKey: `00${age}`, age }]),
    );
  }
  return client;
}

const keysOf = (entities) => entities.map(({ partitionKey, rowKey }) => partitionKey + rowKey);
const everyKey = ["a", "b"].flatMap((partition) => [0, 1, 2, 3, 4].map((row) => `${partition}00${row}`));

test("entities come in the order of their keys", async () => {
  const client = await filled();

  assert.deepEqual(keysOf(await allOf(client.listEntities())), everyKey);
});

test("pages have their size, and a token starts the next one", async () => {
  const client = await filled();

  const first = await client.listEntities().byPage({ maxPageSize: 4 }).next();
  assert.deepEqual(keysOf(first.value), everyKey.slice(0, 4));

  const rest = [];
  const { continuationToken } = first.value;
  for await (const page of client.listEntities().byPage({ maxPageSize: 4, continuationToken })) {
    rest.push(keysOf(page));
  }
  assert.deepEqual(rest, [everyKey.slice(4, 8), everyKey.slice(8)]);
});

test("a token works in another client", async () => {
  const client = await filled();
  const { value } = await client.listEntities().byPage({ maxPageSize: 9 }).next();

  const again = await client
    .listEntities()
    .byPage({ maxPageSize: 9, continuationToken: value.continuationToken })
    .next();

  assert.deepEqual(keysOf(again.value), ["b004"]);
});

test("a filter chooses by every type", async () => {
  const client = await aTable();
  const values = {
    text: "it's",
    small: 7,
    large: 1099511627776n,
    half: 0.5,
    truth: true,
    moment: new Date("2020-05-17T01:02:03.004Z"),
    id: { type: "Guid", value: "c9da6455-213d-42c9-9a79-3e9149a57833" },
    bytes: new Uint8Array([0, 255]),
  };
  await client.createEntity({ partitionKey: "p", rowKey: "r", ...values });
  await client.createEntity({ partitionKey: "p", rowKey: "other" });

  for (const filter of [
    odata`text eq ${values.text}`,
    odata`small eq ${values.small}`,
    `large eq ${values.large}L`, // odata`` leaves the L out, which the service needs
    odata`half eq ${values.half}`,
    odata`truth eq ${values.truth}`,
    odata`moment eq ${values.moment}`,
    `id eq guid'${values.id.value}'`,
    "bytes eq X'00ff'",
  ]) {
    const found = await allOf(client.listEntities({ queryOptions: { filter } }));
    assert.deepEqual(found.map(({ rowKey }) => rowKey), ["r"], filter);
  }
});

test("a bigint beyond 32 bits needs its L", async () => {
  const client = await aTable();
  const filter = odata`large eq ${1099511627776n}`;
  await assert.rejects(allOf(client.listEntities({ queryOptions: { filter } })), (error) => {
    assert.equal(error.statusCode, 400);
    assert.equal(error.details.errorCode, "InvalidInput");
    return true;
  });
});

test("a value in a filter cannot break out", async () => {
  const client = await filled();
  const evil = "x' or PartitionKey ne '";

  const filter = odata`PartitionKey eq ${evil}`;

  assert.deepEqual(await allOf(client.listEntities({ queryOptions: { filter } })), []);
});

test("a wrong filter is refused with its place", async () => {
  const client = await aTable();

  await assert.rejects(allOf(client.listEntities({ queryOptions: { filter: "aaa bbb ccc" } })), (error) => {
    assert.equal(error.statusCode, 400);
    assert.match(error.details.odataError.message.value, /^Syntax error at position 7 in 'aaa bbb ccc'\./);
    return true;
  });
});
