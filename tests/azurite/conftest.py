"""These tests are for `make azurite` only: without its plugin there is no Azurite to ask."""

import sys

collect_ignore_glob = [] if "azurite.plugin" in sys.modules else ["test_*.py"]
