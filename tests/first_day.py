"""Commands that users of Kafka, NATS or S2 try on their first day, run one after the other.

Part of `python -m tests newcomer`. Each step has a command, its exit code and the lines that it
must print to standard output, or to standard error if it fails. `~` begins a pattern that must
occur there.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support import commands

_PATIENCE_S: Final = 60.0
# These need a shell or their own folder.
_NEEDS_SHELL: Final = re.compile(r"^(?!rollbook )|[|;&<>$(]|\.rbx")

_STEPS: Final = r"""
# Is it there, and what can it do?
$ rollbook --version
~ rollbook, version \d
$ rollbook --help
~ log +Create, append to, read, follow
$ rollbook log append --help
~ (?s)--key TEXT.*--header NAME=VALUE.*--producer NAME.*Examples:
$ rollbook log lst
2 ~ error: No such command 'lst'.*\n +outcome: not applied.*\n +try:
$ rollbook log ls --server log://127.0.0.1:1
5 ~ error: no log server answers at 127.0.0.1:1.*\n +outcome: not applied.*\n +try:

# The first records
$ rollbook log append orders 'order 1' 'order 2' --create
~ (?s)first_offset +0\nnext_offset +2
$ printf 'order 3\norder 4\n' | rollbook log append orders -o json
~ "next_offset": 4
$ rollbook log append orders paid --key 4711 --header source=shop --event-time 2026-01-31T10:00:00Z
~ first_offset +4
$ printf '{"value":"sent","key":"4711"}\n{"value":"back"}\n' | rollbook log append orders --format ndjson
~ records +2
$ printf 'a\0b\nc\0' | rollbook log append binary --create --format nul
~ records +2
$ rollbook log append nothing record
3 ~ error: There is no log of this name.*\n.*\n +try: rollbook log create nothing
$ rollbook log append orders late --expect 0
4 ~ OFFSET_MISMATCH.*\n +outcome: 0 records are acknowledged; 1 were not appended\n +try: rollbook log show orders
$ rollbook log append orders exact --expect 7
~ first_offset +7

# Reading, as far as there is something
$ rollbook log read orders -o raw
~ ^order 1\norder 2\norder 3\norder 4\npaid\nsent\nback\nexact$
$ rollbook log read orders --from 4 --limit 1
~ OFFSET +TIME +RECORD\n +4 .* 4711: paid
$ rollbook log read orders --from 4 --limit 1 -o ndjson
~ "key": ?"4711".*"headers": ?\{"source": ?"shop"\}.*"event_time_us": ?1769853600000000
$ rollbook log read orders --from -1 -o raw
~ ^exact$
$ rollbook log read orders --from ts:2020-01-01T00:00:00Z --limit 1 -o raw
~ ^order 1$
$ rollbook log read orders --from ago:1h --to 2 -o raw
~ ^order 1\norder 2$
$ rollbook log read orders -f '%o %k=%v\n' --from 4 --limit 2
~ ^4 4711=paid\n5 4711=sent$
$ rollbook log read orders --from 99
3 ~ BEYOND_TAIL.*\n.*\n +try: rollbook log show orders
$ rollbook log read orders --from yesterday
2 ~ (?s)'yesterday'.*try:
$ rollbook log read orders -o json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))'
~ ^8$
$ rollbook log read binary --frame nul -o raw | od -An -c | tr -s ' '
~ a \\0 b \\n c \\0
$ printf '\377\0' | rollbook log append binary --format nul -o json && rollbook log read binary --from -1
~ 2 .* hex:ff$
$ rollbook log create quiet && rollbook log read quiet 2>&1
~ quiet is empty$
$ rollbook log read orders --from latest 2>&1
~ no records from latest on: orders has offsets 0 to 7
$ rollbook log read orders -o ndjson | rollbook log append copy --create --format ndjson
~ records +8
$ rollbook log read copy -o raw | head -n 1
~ ^order 1$

# Following
$ rollbook log tail orders -n 2 --limit 2 -o raw
~ ^back\nexact$
$ (sleep 0.5; rollbook log append orders followed >/dev/null) & rollbook log tail orders -n 0 --limit 1 -o raw; wait
~ ^followed$

# Exactly once, over retries
$ for time in 1 2; do printf 'x\ny\n' | rollbook log append imported --create --producer import-1 -o json; done
~ (?s)"next_offset": 2.*"next_offset": 2
$ rollbook log read imported -o raw | wc -l
~ ^ *2$
$ printf 'x\nz\n' | rollbook log append imported --producer import-1
2 ~ (?s)error: .*DUPLICATE_DIFFERS.*outcome: .*try:

# Cursors
$ rollbook cursor set orders billing 2
~ offset +2
$ rollbook cursor ls orders
~ billing +2 +7
$ rollbook cursor ls
~ LOG +NAME.*\ndefault/orders +billing
$ rollbook log read orders --from cursor:billing --limit 1 -o raw
~ ^order 3$
$ rollbook cursor show orders shipping
3 ~ try: rollbook cursor ls orders
$ rollbook cursor set orders billing 1
4 ~ try: rollbook cursor set orders billing 1 --rewind
$ rollbook cursor rm orders billing --yes
~ removed +billing

# Settings and facts
$ rollbook log show orders
~ (?s)head +0\ntail +9.*owner +\S+:\d+.*config.retention_age
$ rollbook log show orders -o raw
~ ^9$
$ rollbook log set orders retention_age=30d </dev/null
2 ~ NOT_CONFIRMED.*\n.*\n +try: pass --yes
$ rollbook log set orders retention_age=30d retention_bytes=256MiB --yes
~ retention
$ rollbook log show orders
~ (?s)config.retention_age +30d\n.*config.retention_bytes +256 MiB\n
$ rollbook log show orders -o json
~ (?s)"retention_age_s": 2592000,.*"retention_bytes": 268435456,
$ rollbook log set orders retention_bytes=lots --yes
2 ~ 'lots' is not a number of bytes.*\n.*\n +try: write 1000, 500M
$ rollbook log set orders color=red --yes
2 ~ (?s)color.*try:
$ rollbook log ls
~ (?s)default/binary\ndefault/copy\ndefault/imported\ndefault/orders\ndefault/quiet
$ rollbook log ls default/bin
~ ^LOG\ndefault/binary$
$ rollbook log ls nothing 2>&1
~ no log begins with nothing$
$ rollbook log ls --long -o json | python3 -c 'import json, sys; print(sum(each["tail"] for each in json.load(sys.stdin)))'
~ ^22$
$ rollbook log segments orders
~ (?s)SEGMENT_ID.*\n *\d
$ rollbook log journal orders --limit 1
~ .
$ rollbook explain orders
~ .

# Truncating, sealing, deleting
$ rollbook log truncate orders --before 2 --dry-run
~ (?s)done +no.*new_head +2
$ rollbook log truncate orders --before 2 --yes
~ (?s)done +yes.*new_head +2
$ rollbook log read orders --from 0
3 ~ TRUNCATED.*\n.*\n +try: rollbook log read orders --from earliest
$ rollbook log seal copy --yes
~ copy
$ rollbook log append copy more
4 ~ SEALED.*\n.*\n +try:
$ rollbook log rm imported --yes
~ imported +\d{4}-
$ rollbook log read imported
3 ~ (?s)error: .*outcome: .*try:
$ rollbook log ls --deleted
~ imported
$ rollbook log append imported "second life" --create
~ next_offset +1
$ rollbook log undelete imported --as recovered
~ recovered
$ rollbook log read recovered -o raw
~ ^x\ny$

# Backup, and another way in
$ rollbook log export orders orders.rbx
~ (?s)first_offset +2.*next_offset +9
$ rollbook log import restored orders.rbx --create
~ records +7
$ rollbook log import restored orders.rbx
~ (?s)records +0\nwere_there +7
$ rollbook log verify restored
~ (?s)restored
$ curl -sf http://HTTP/v1/namespaces/default/logs/orders/records?from=-1
~ "data": ?"followed"
$ curl -sf -X POST -H 'Content-Type: application/octet-stream' --data 'by curl' http://HTTP/v1/namespaces/default/logs/orders/records
~ "next_offset": ?10
$ curl -s http://HTTP/v1/namespaces/default/logs/missing
~ "reason": ?"LOG_NOT_FOUND"
$ curl -s -X POST -H 'Content-Type: text/plain' --data 'by curl' http://HTTP/v1/namespaces/default/logs/orders/records
~ "next_step": ?"send Content-Type: application/octet-stream
$ curl -sf http://HTTP/ | python3 -c 'import json, sys; print(json.load(sys.stdin)["links"]["openapi"])'
~ ^/openapi.json$
$ curl -sf http://HTTP/openapi.json
~ "openapi": ?"3

# From Python
$ python3 -c 'import rollbook; c = rollbook.connect(); print(next(c.open("orders").read()).value)'
~ ^b'order 3'$
$ python3 -c 'import rollbook; c = rollbook.connect(); print(c.open("new", create=True).append(b"1").next_offset)'
~ ^1$
$ python3 -c 'import rollbook; rollbook.connect("log://127.0.0.1:1")'
1 ~ (?s)ServerUnreachable: no log server answers at 127.0.0.1:1
$ python3 -c 'import rollbook; rollbook.connect().open("missing")'
1 ~ (?s)NoSuchLog

# The cluster
$ rollbook cluster health
~ .
$ rollbook cluster servers
~ \d+\.\d+\.\d+\.\d+:\d+
$ rollbook cluster info -o json
~ "usable_bookies": 3
$ rollbook context add here --server "$ROLLBOOK_SERVER" && rollbook context use here && env -u ROLLBOOK_SERVER rollbook log ls -o name
~ default/orders
"""


@dataclass(frozen=True)
class FirstDayStep:
    command: str
    status: int
    shown: str  # A pattern that the output must match.


def steps(http: str) -> Iterator[FirstDayStep]:
    """`http`: where the log server listens for HTTP."""
    command = ""
    for line in _STEPS.replace("HTTP", http).splitlines():
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
        elif command:
            status, _, pattern = line.partition("~ ")
            yield FirstDayStep(command, int(status or 0), pattern)
            command = ""


def take(step: FirstDayStep, folder: Path, environment: Mapping[str, str]) -> None:
    """Runs a step. Raises `AssertionError` if its exit code or its output is wrong."""
    environment = {**environment, "NO_COLOR": "1"}
    if _NEEDS_SHELL.search(step.command):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", step.command],
            cwd=folder,
            env={**environment, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    else:
        _, *words = shlex.split(step.command)
        done = commands.run(*words, environment=environment, timeout_s=_PATIENCE_S)
    shown, complaints = done.stdout.decode(), done.stderr.decode()
    everything = f"{step.command}\n{shown}{complaints}"
    assert done.returncode == step.status, f"{everything}\nended with {done.returncode}"
    what = complaints if step.status else shown
    assert re.search(step.shown, what.strip("\n"), re.MULTILINE), (
        f"{everything}\nis not {step.shown}"
    )
    if step.command.startswith("rollbook"):
        assert "Traceback" not in everything, everything
