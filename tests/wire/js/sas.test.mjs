import assert from "node:assert/strict";
import { test } from "node:test";
import { AzureSASCredential, TableServiceClient, generateAccountSas, generateTableSas } from "@azure/data-tables";
import { aTable, allOf, anEntity, credential, endpoint, open, options, refuses } from "./live.mjs";

const inAnHour = new Date(Date.now() + 3_600_000);
const anHourAgo = new Date(Date.now() - 3_600_000);

const withSas = (client, terms) =>
  open(
    client.tableName,
    new AzureSASCredential(
      generateTableSas(client.tableName, credential, { expiresOn: inAnHour, ...terms }),
    ),
  );

test("a table SAS allows what its permissions say", async () => {
  const client = await aTable();
  await client.createEntity(anEntity("r", { age: 7 }));

  const reader = withSas(client, { permissions: { query: true } });

  assert.equal((await reader.getEntity("p", "r")).age, 7);
  assert.equal((await allOf(reader.listEntities())).length, 1);
  await refuses(reader.createEntity(anEntity("new")), 403, "AuthorizationPermissionMismatch");
  await assert.rejects(reader.submitTransaction([["create", anEntity("new")]]), { statusCode: 403 });
});

test("a table SAS writes, alone and in a transaction", async () => {
  const client = await aTable();
  const all = { query: true, add: true, update: true, delete: true };

  const writer = withSas(client, { permissions: all });

  await writer.upsertEntity(anEntity("a"));
  await writer.submitTransaction([["create", anEntity("b")], ["delete", anEntity("a")]]);
  assert.deepEqual((await allOf(client.listEntities())).map(({ rowKey }) => rowKey), ["b"]);
});

test("a range of keys bounds a table SAS", async () => {
  const client = await aTable();
  for (const partitionKey of ["a", "b", "c"]) await client.createEntity({ partitionKey, rowKey: "1" });

  const holder = withSas(client, {
    permissions: { query: true, add: true },
    startPartitionKey: "b",
    endPartitionKey: "b",
  });

  assert.deepEqual((await allOf(holder.listEntities())).map(({ partitionKey }) => partitionKey), ["b"]);
  await refuses(holder.getEntity("a", "1"), 404, "ResourceNotFound");
  const outside = { partitionKey: "c", rowKey: "2" };
  await refuses(holder.createEntity(outside), 403, "AuthorizationFailure");
});

test("an expired SAS is refused", async () => {
  const client = await aTable();

  const late = withSas(client, { permissions: { query: true }, expiresOn: anHourAgo });

  await refuses(allOf(late.listEntities()), 403, "AuthenticationFailed");
});

test("a stored policy completes a SAS", async () => {
  const client = await aTable();
  await client.setAccessPolicy([
    { id: "reader", accessPolicy: { start: anHourAgo, expiry: inAnHour, permission: "r" } },
  ]);

  const holder = withSas(client, { identifier: "reader", expiresOn: undefined });

  assert.deepEqual(await allOf(holder.listEntities()), []);
  await client.setAccessPolicy([]);
  await refuses(allOf(holder.listEntities()), 403, "AuthenticationFailed");
});

test("an account SAS lists tables", async () => {
  const client = await aTable();
  const sas = generateAccountSas(credential, { expiresOn: inAnHour });

  const holder = new TableServiceClient(endpoint, new AzureSASCredential(sas), options);

  const names = (await allOf(holder.listTables())).map(({ name }) => name);
  assert.ok(names.includes(client.tableName));
});
