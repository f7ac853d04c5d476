// The live server that these tests talk to, and the few things they all need.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { AzureNamedKeyCredential, TableClient, TableServiceClient } from "@azure/data-tables";

export const endpoint = process.env.PARTITA_ENDPOINT;
export const credential = new AzureNamedKeyCredential(
  "devstoreaccount1",
  "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);
// A server error is a failure here, so nothing is tried again.
export const options = { allowInsecureConnection: true, retryOptions: { maxRetries: 0 } };

export const service = new TableServiceClient(endpoint, credential, options);

export const aName = () => `T${randomUUID().replaceAll("-", "")}`;

export const anEntity = (rowKey, properties = {}) => ({ partitionKey: "p", rowKey, ...properties });

export function open(name, as = credential) {
  return new TableClient(endpoint, name, as, options);
}

export async function aTable() {
  const client = open(aName());
  await client.createTable();
  return client;
}

export async function allOf(listing) {
  const items = [];
  for await (const item of listing) items.push(item);
  return items;
}

// The SDK puts the code of the service into the details, and into `code` only for transactions.
export async function refuses(promise, statusCode, code) {
  await assert.rejects(promise, (error) => {
    assert.deepEqual([error.statusCode, error.details?.odataError?.code], [statusCode, code]);
    return true;
  });
}
