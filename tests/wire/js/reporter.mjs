// Prints one JSON line a test, for test_javascript_sdk.py.

import { inspect } from "node:util";

export default async function* report(events) {
  for await (const { type, data } of events) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    const error = data.details?.error;
    const cause = error?.cause ?? error;
    yield JSON.stringify({
      name: data.name,
      passed: type === "test:pass",
      problem: cause ? inspect(cause) : "",
    }) + "\n";
  }
}
