// The blob client of the SDK: containers, blobs, blocks, appends, leases, copies, batches, tokens.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { Readable } from "node:stream";
import { test } from "node:test";
import {
  BlobSASPermissions,
  BlobServiceClient,
  ContainerClient,
  StorageSharedKeyCredential,
} from "@azure/storage-blob";

const endpoint = process.env.PARTITA_BLOB_ENDPOINT;
const credential = new StorageSharedKeyCredential(
  "devstoreaccount1",
  "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
);
// A server error is a failure here, so nothing is tried again.
const options = { retryOptions: { maxTries: 1 } };
const service = new BlobServiceClient(endpoint, credential, options);

async function aContainer() {
  const container = service.getContainerClient(`c${randomUUID()}`);
  await container.create();
  return container;
}

async function textOf(blob, ...range) {
  return (await blob.downloadToBuffer(...range)).toString();
}

test("a container is created if it is not there", async () => {
  const container = service.getContainerClient(`c${randomUUID()}`);
  assert.equal((await container.createIfNotExists()).succeeded, true);
  assert.equal((await container.createIfNotExists()).succeeded, false);
  assert.equal((await container.deleteIfExists()).succeeded, true);
  assert.equal(await container.exists(), false);
});

test("a blob comes back with its headers and metadata", async () => {
  const blob = (await aContainer()).getBlockBlobClient("a b/ü?.txt");
  await blob.upload("hello", 5, {
    blobHTTPHeaders: { blobContentType: "text/plain" },
    metadata: { of: "staff" },
  });
  const found = await blob.getProperties();
  assert.equal(found.contentType, "text/plain");
  assert.deepEqual(found.metadata, { of: "staff" });
  assert.equal(await textOf(blob), "hello");
  assert.equal(await textOf(blob, 1, 3), "ell");
});

test("a plain download streams", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  await blob.upload("x".repeat(300000), 300000);
  const answer = await blob.download();
  let size = 0;
  for await (const piece of answer.readableStreamBody) size += piece.length;
  assert.equal(size, 300000);
});

test("small blocks become one blob", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  const content = Buffer.alloc(1000000, "abc");
  await blob.uploadData(content, { blockSize: 100000, maxSingleShotSize: 1000, concurrency: 4 });
  assert.equal((await blob.getBlockList("committed")).committedBlocks.length, 10);
  assert.deepEqual(await blob.downloadToBuffer(), content);
});

test("a stream of unknown length is uploaded", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  await blob.uploadStream(Readable.from([Buffer.from("one "), Buffer.from("two")]), 65536, 2);
  assert.equal(await textOf(blob), "one two");
});

test("blobs are listed flat and by hierarchy", async () => {
  const container = await aContainer();
  for (const name of ["a/1", "a/2", "b"]) await container.getBlockBlobClient(name).upload("x", 1);
  const flat = [];
  for await (const page of container.listBlobsFlat().byPage({ maxPageSize: 2 })) {
    flat.push(page.segment.blobItems.map((item) => item.name));
  }
  assert.deepEqual(flat, [["a/1", "a/2"], ["b"]]);
  const top = [];
  for await (const item of container.listBlobsByHierarchy("/")) top.push([item.kind, item.name]);
  assert.deepEqual(top.sort(), [["blob", "b"], ["prefix", "a/"]]);
  assert.deepEqual(await Array.fromAsync((await aContainer()).listBlobsFlat()), []);
});

test("appends land one after the other", async () => {
  const blob = (await aContainer()).getAppendBlobClient("log");
  await blob.create();
  await blob.appendBlock("one", 3);
  assert.equal((await blob.appendBlock("two", 3)).blobAppendOffset, "3");
  assert.equal(await textOf(blob), "onetwo");
});

test("a condition keeps an older version from being written over", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  const { etag } = await blob.upload("1", 1);
  await blob.upload("2", 1);
  const late = blob.upload("3", 1, { conditions: { ifMatch: etag } });
  await assert.rejects(late, { statusCode: 412, code: "ConditionNotMet" });
});

test("a range comes with the checksum that is asked for", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  await blob.upload("<hello world>", 13);
  const checked = await blob.download(1, 11, { rangeGetContentCrc64: true });
  assert.equal(Buffer.from(checked.contentCrc64).toString("base64"), "vo7q9sPVKY0=");
  const both = { rangeGetContentMD5: true, rangeGetContentCrc64: true };
  await assert.rejects(blob.download(1, 11, both), { statusCode: 400 });
});

test("an empty etag sets no condition", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  await blob.upload("1", 1, { conditions: { ifMatch: "" } });
  await blob.upload("2", 1, { conditions: { ifMatch: "" } });
  assert.equal(await textOf(blob), "2");
});

test("a lease is held by one", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  await blob.upload("1", 1);
  const lease = blob.getBlobLeaseClient();
  await lease.acquireLease(15);
  await assert.rejects(blob.getBlobLeaseClient().acquireLease(15), { code: "LeaseAlreadyPresent" });
  await assert.rejects(blob.delete(), { code: "LeaseIdMissing" });
  await blob.delete({ conditions: { leaseId: lease.leaseId } });
});

test("a copy is done when it is polled", async () => {
  const container = await aContainer();
  const source = container.getBlockBlobClient("source");
  await source.upload("content", 7);
  const target = container.getBlockBlobClient("target");
  const done = await (await target.beginCopyFromURL(source.url)).pollUntilDone();
  assert.equal(done.copyStatus, "success");
  assert.equal(await textOf(target), "content");
});

test("a snapshot stays", async () => {
  const blob = (await aContainer()).getBlockBlobClient("b");
  await blob.upload("old", 3);
  const { snapshot } = await blob.createSnapshot();
  await blob.upload("new", 3);
  assert.equal(await textOf(blob.withSnapshot(snapshot)), "old");
});

test("a batch deletes many", async () => {
  const container = await aContainer();
  const blobs = ["1", "2"].map((name) => container.getBlockBlobClient(name));
  for (const blob of blobs) await blob.upload("x", 1);
  const batch = container.getBlobBatchClient();
  const done = await batch.deleteBlobs(blobs.map((blob) => blob.url), credential);
  assert.deepEqual(done.subResponses.map((answer) => answer.status), [202, 202]);
});

test("a token reads one blob", async () => {
  const container = await aContainer();
  const blob = container.getBlockBlobClient("b");
  await blob.upload("x", 1);
  const expiresOn = new Date(Date.now() + 3600 * 1000);
  const permissions = BlobSASPermissions.parse("r");
  const url = await blob.generateSasUrl({ permissions, expiresOn });
  assert.equal(await (await fetch(url)).text(), "x");
  const token = url.split("?")[1];
  const granted = new ContainerClient(`${container.url}?${token}`, undefined, options);
  await assert.rejects(granted.getBlockBlobClient("b").delete(), { statusCode: 403 });
});
