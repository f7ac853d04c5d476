import assert from "node:assert/strict";
import { test } from "node:test";
import { RestError, odata } from "@azure/data-tables";
import { aTable, allOf, anEntity, refuses } from "./live.mjs";

const withoutFront = ({ etag, timestamp, ...rest }) =>
  Object.fromEntries(Object.entries(rest).filter(([name]) => !name.startsWith("odata")));

test("every type comes back as it went", async () => {
  const client = await aTable();
  const sent = anEntity("r", {
    text: "a 'quoted' \u2028 \u{1d11e} \\ text",
    empty: "",
    int32: -2147483648,
    int64: 9223372036854775807n,
    smallInt64: 64n,
    half: 0.1,
    least: 5e-324,
    truth: true,
    moment: new Date("2008-07-10T23:59:59.123Z"),
    id: { type: "Guid", value: "c9da6455-213d-42c9-9a79-3e9149a57833" },
    bytes: new Uint8Array([0, 1, 127, 128, 255]),
  });

  await client.createEntity(sent);

  const shown = withoutFront(await client.getEntity("p", "r"));
  assert.deepEqual({ ...shown, bytes: new Uint8Array(shown.bytes) }, sent);
});

test("numbers that are none come back", async () => {
  const client = await aTable();

  await client.createEntity(
    anEntity("r", {
      nan: { type: "Double", value: "NaN" },
      up: { type: "Double", value: "Infinity" },
      down: { type: "Double", value: "-Infinity" },
    }),
  );

  const { nan, up, down } = await client.getEntity("p", "r", { disableTypeConversion: true });
  assert.deepEqual([nan.value, up.value, down.value], ["NaN", "Infinity", "-Infinity"]);
});

test("a whole double stays a double without conversion", async () => {
  const client = await aTable();

  await client.createEntity(anEntity("r", { five: { type: "Double", value: "5" }, bare: 5 }));

  const shown = await client.getEntity("p", "r", { disableTypeConversion: true });
  assert.deepEqual(shown.bare, { type: "Int32", value: "5" });
  assert.equal(Number(shown.five.value ?? shown.five), 5);
});

test("the etag of an entity is the one its writes name", async () => {
  const client = await aTable();

  const { etag } = await client.createEntity(anEntity("r"));

  assert.equal((await client.getEntity("p", "r")).etag, etag);
});

test("merge keeps and replace drops what is not mentioned", async () => {
  const client = await aTable();
  await client.createEntity(anEntity("r", { old: 1 }));

  await client.updateEntity(anEntity("r", { added: 2 }), "Merge");
  assert.deepEqual(withoutFront(await client.getEntity("p", "r")), anEntity("r", { old: 1, added: 2 }));
  await client.updateEntity(anEntity("r", { last: 3 }), "Replace");
  assert.deepEqual(withoutFront(await client.getEntity("p", "r")), anEntity("r", { last: 3 }));
});

test("an upsert merges or replaces, and makes what is missing", async () => {
  const client = await aTable();

  await client.upsertEntity(anEntity("r", { first: 1 }), "Merge");
  await client.upsertEntity(anEntity("r", { second: 2 }), "Merge");
  assert.deepEqual(withoutFront(await client.getEntity("p", "r")), anEntity("r", { first: 1, second: 2 }));
  await client.upsertEntity(anEntity("r", { third: 3 }), "Replace");
  assert.deepEqual(withoutFront(await client.getEntity("p", "r")), anEntity("r", { third: 3 }));
});

test("a stale etag is a conflict and changes nothing", async () => {
  const client = await aTable();
  const { etag } = await client.createEntity(anEntity("r", { age: 1 }));
  await client.updateEntity(anEntity("r", { age: 2 }), "Replace", { etag });

  for (const mode of ["Merge", "Replace"]) {
    const update = client.updateEntity(anEntity("r", { age: 3 }), mode, { etag });
    await refuses(update, 412, "UpdateConditionNotSatisfied");
  }
  await refuses(client.deleteEntity("p", "r", { etag }), 412, "UpdateConditionNotSatisfied");
  assert.equal((await client.getEntity("p", "r")).age, 2);
});

test("an error carries what the service said", async () => {
  const client = await aTable();
  await client.createEntity(anEntity("r"));

  await assert.rejects(client.createEntity(anEntity("r")), (error) => {
    assert.ok(error instanceof RestError);
    assert.equal(error.statusCode, 409);
    assert.equal(error.details.errorCode, "EntityAlreadyExists");
    assert.equal(error.details.odataError.code, "EntityAlreadyExists");
    assert.match(error.details.odataError.message.value, /^The specified entity already exists\.\nRequestId:/);
    return true;
  });
});

test("a deleted entity is gone, and gone is not found", async () => {
  const client = await aTable();
  await client.createEntity(anEntity("r"));

  await client.deleteEntity("p", "r");

  await refuses(client.getEntity("p", "r"), 404, "ResourceNotFound");
  await refuses(client.deleteEntity("p", "r"), 404, "ResourceNotFound");
});

const oddKeys = [
  "", " ", "o'clock", "''", "100%", "foo%25", "a+b c", "日本語", "\u{1f600}",
  ",;:@&=$!*()\"<>{}|^`~[]", "PartitionKey='x',RowKey='y'", "k".repeat(512),
];

for (const [place, key] of oddKeys.entries()) {
  test(`odd key ${place} works in every operation`, async () => {
    const client = await aTable();
    const sent = { partitionKey: key, rowKey: key, age: 1 };

    await client.createEntity(sent);
    await client.updateEntity({ ...sent, age: 2 }, "Merge");
    await client.submitTransaction([["update", { ...sent, age: 3 }, "Merge"]]);
    const filter = odata`PartitionKey eq ${key} and RowKey eq ${key}`;
    const found = await allOf(client.listEntities({ queryOptions: { filter } }));
    assert.deepEqual(found.map(withoutFront), [{ ...sent, age: 3 }]);

    await client.deleteEntity(key, key);
    await refuses(client.getEntity(key, key), 404, "ResourceNotFound");
  });
}

test("select shows what is asked for", async () => {
  const client = await aTable();
  await client.createEntity(anEntity("r", { a: 1, b: 2 }));

  const shown = await client.getEntity("p", "r", { queryOptions: { select: ["b", "absent"] } });

  assert.equal(shown.b, 2);
  assert.equal(shown.absent, null);
  assert.ok(!("a" in shown) && !("rowKey" in shown));
});
