// Writes tables in the layouts of the design guide, as a program in JavaScript would.
// Their names begin with the first argument.

import { randomUUID } from "node:crypto";
import { open } from "./live.mjs";

const prefix = process.argv[2];

async function fill(name, entities) {
  const table = open(`${prefix}${name}`);
  await table.createTable();
  for (const entity of entities) await table.createEntity(entity);
}

const person = (partitionKey, rowKey, number) => ({
  partitionKey,
  rowKey,
  firstName: `First${number}`,
  lastName: number % 2 ? "Jones" : "Hall",
  age: 20 + number,
  email: `E${number}@Contoso.com`,
  hired: new Date(Date.UTC(2014, 6, number + 1, 18, 30)),
});
const numbers = [1, 2, 3, 4, 5, 6];
const padded = (number, width) => String(number).padStart(width, "0");

// Departments and employees in one partition.
await fill("staff", [
  ...numbers.map((n) => person(n % 2 ? "Sales" : "Marketing", padded(n, 5), n)),
  { partitionKey: "Sales", rowKey: "Department", departmentName: "Sales", employeeCount: 3 },
  { partitionKey: "Marketing", rowKey: "Department", departmentName: "Marketing", employeeCount: 3 },
]);

// The intra-partition index: two copies of each employee, with a type property.
await fill("indexed", [
  ...numbers.map((n) => ({ ...person("Sales", `empid_${padded(n, 6)}`, n), EntityType: "Employee" })),
  ...numbers.map((n) => ({ ...person("Sales", `email_e${n}@contoso.com`, n), EntityType: "Employee" })),
]);

// Index entities with lists, compound keys of reviews, JSON.
await fill("reviews", [
  { partitionKey: "Sales", rowKey: "lastname_Jones", employeeIDs: "000001,000003" },
  { partitionKey: "Sales", rowKey: "lastname_Hall", employeeIDs: "000002" },
  ...numbers.map((n) => ({
    partitionKey: "Sales",
    rowKey: `${padded(n, 6)}_${2010 + n}`,
    managerRating: 7 - n,
    comments: JSON.stringify(["good", "year"]),
    ...(n % 2 ? { peerRating: 2.5 } : {}),
  })),
]);

// The log tail: reversed ticks of .NET in partitions by hour, with a score highest first.
const maximum = 3155378975999999999n;
const ticks = (at) => BigInt(at.getTime()) * 10000n + 621355968000000000n;
await fill("expenses", numbers.map((n) => {
  const at = new Date(Date.UTC(2014, 6, 31, 12 + n, 5));
  return {
    partitionKey: at.toISOString().slice(0, 13).replaceAll("-", "").replace("T", ""),
    rowKey: `${maximum - ticks(at)}_${9999 - n * 10}`,
    score: n * 10,
    amount: { type: "Int64", value: String(n * 1000) },
    receipt: { type: "Guid", value: randomUUID() },
    photo: new Uint8Array([1, 2, n]),
    paid: n % 2 === 0,
  };
}));

// Data series: one property for each hour.
await fill("messages", numbers.map((n) => ({
  partitionKey: `room${n}`,
  rowKey: `2014-07-${padded(n, 2)}`,
  ...Object.fromEntries([...Array(24).keys()].map((hour) => [`h${padded(hour, 2)}`, hour * n])),
})));
