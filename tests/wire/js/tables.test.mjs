import assert from "node:assert/strict";
import { test } from "node:test";
import { odata } from "@azure/data-tables";
import { aName, aTable, allOf, anEntity, open, refuses, service } from "./live.mjs";

test("a table is created, listed and deleted", async () => {
  const name = aName();
  const query = { queryOptions: { filter: odata`TableName eq ${name}` } };

  await service.createTable(name);
  assert.deepEqual((await allOf(service.listTables(query))).map((table) => table.name), [name]);

  await service.deleteTable(name);
  assert.deepEqual(await allOf(service.listTables(query)), []);
});

test("creating a table twice is no error", async () => {
  const client = await aTable();

  await client.createTable();
  await service.createTable(client.tableName);
});

test("tables are listed by page", async () => {
  const name = aName();
  const names = ["a", "b", "c", "d", "e"].map((letter) => `${name}${letter}`);
  for (const each of names) await service.createTable(each);

  const filter = odata`TableName ge ${name} and TableName lt ${`${name}z`}`;
  const pages = service.listTables({ queryOptions: { filter } }).byPage({ maxPageSize: 2 });

  const seen = [];
  for await (const page of pages) seen.push(page.map((table) => table.name));
  assert.deepEqual(seen, [names.slice(0, 2), names.slice(2, 4), names.slice(4)]);
});

test("a bad table name is refused with its code", async () => {
  await refuses(open("no-name").createTable(), 400, "InvalidResourceName");
});

test("a missing table is told from a missing entity", async () => {
  const client = await aTable();

  await refuses(client.getEntity("p", "r"), 404, "ResourceNotFound");
  await refuses(open(aName()).getEntity("p", "r"), 404, "TableNotFound");
});

test("access policies come back as they were set", async () => {
  const client = await aTable();
  const start = new Date("2021-06-08T02:05:09Z");
  const expiry = new Date("2031-06-08T02:05:09Z");

  await client.setAccessPolicy([{ id: "reader", accessPolicy: { start, expiry, permission: "r" } }]);

  const [policy] = await client.getAccessPolicy();
  assert.equal(policy.id, "reader");
  assert.deepEqual(policy.accessPolicy, { start, expiry, permission: "r" });
});

test("service properties are read", async () => {
  const properties = await service.getProperties();
  assert.equal(properties.logging.version, "1.0");
  assert.equal(properties.minuteMetrics.enabled, false);
  assert.deepEqual(properties.cors, []);
});

test("a table is reached in any case", async () => {
  const client = await aTable();
  await client.createEntity(anEntity("r", { age: 7 }));

  assert.equal((await open(client.tableName.toLowerCase()).getEntity("p", "r")).age, 7);
});
