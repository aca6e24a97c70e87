#!/bin/sh
# Plays the quickstart scenario and says where to look.
set -eu
./cedar run scenarios/quickstart.lua -o quickstart.db --replace
./cedar report quickstart.db -o quickstart.html
cat <<'TEXT'

Look at:
  quickstart.html                 the report with charts; open it in a browser
  ./cedar report quickstart.db    the same as text
  sqlite3 quickstart.db           the results themselves; docs/METRICS.md explains every view
Go on with:
  ./cedar replay quickstart.db    plays it again and compares event for event
  ./cedar help                    all verbs
  scenarios/INDEX.md              more scenarios, and docs/SCENARIOS.md to write one
TEXT
