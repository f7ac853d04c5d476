"""Fuzz one target with atheris: `python tests/fuzz/run.py TARGET --seconds N`.

What is found new is kept in a folder of its own and never in the corpus: add to the corpus by
hand, under a name that says what the input means. A crash ends the run with a status that is
not zero and leaves the input that caused it in that folder.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

with atheris.instrument_imports(include=["partita"]):
    from fuzz.targets import TARGETS


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz one target.")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--input", type=Path, help="replay one file instead of fuzzing")
    chosen = parser.parse_args()
    target = TARGETS[chosen.target]
    if chosen.input is not None:
        print("understood" if target(chosen.input.read_bytes()) else "refused")
        return
    found = Path(tempfile.mkdtemp(prefix=f"fuzz-{chosen.target}-"))
    print(f"new inputs and crashes: {found}")

    def run_once(data: bytes) -> None:
        target(data)

    flags = [
        f"-max_total_time={chosen.seconds}",
        "-max_len=4096",
        "-timeout=10",
        "-print_final_stats=1",
        f"-artifact_prefix={found}/crash-",
    ]
    corpus = HERE / "corpus" / chosen.target
    atheris.Setup([sys.argv[0], *flags, str(found), str(corpus)], run_once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
