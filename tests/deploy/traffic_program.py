"""A writer that repeats each batch until it is acknowledged, and a tailer. Runs in a container.

Each record's value is its offset, so the tailer detects a lost, repeated or misplaced record at
once. Prints `ACKNOWLEDGED READ` after each change, and `done ACKNOWLEDGED` or `wrong WHY` at the
end. Ends when its input ends.
"""

import os
import sys
import threading
import time
from typing import Any

import rollbook

RECORDS = 10
END_TIMEOUT_S = 60.0
acked = 0
read = 0
wrong = ""
stopping = threading.Event()


def connect() -> Any:
    folder = os.environ.get("FOLDER", "")  # The folder of certificates and tokens.
    if not folder:
        return rollbook.connect()
    return rollbook.connect(
        authorities=f"{folder}/ca.pem", token_file=f"{folder}/admin.token", tls_name="log"
    )


def write(log_name: str) -> None:
    global acked
    number = acked // RECORDS
    while not stopping.is_set():
        try:
            with connect() as client:
                log = client.open(log_name, create=True)
                log.cursor("reports").commit(0)
                while not stopping.is_set():
                    values = [b"%d" % (number * RECORDS + row) for row in range(RECORDS)]
                    log.append_many(values, producer=rollbook.ProducerRef(b"deploy", 0, number))
                    number += 1
                    acked = number * RECORDS
                    time.sleep(0.1)
        except rollbook.RollbookError as error:
            print(f"again {type(error).__name__}", flush=True)
            time.sleep(0.2)


def tail(log_name: str) -> None:
    global read, wrong
    while not wrong:
        try:
            with connect() as client:
                for batch in client.open(log_name, create=True).tail_batches(read):
                    for record in batch.records():
                        if record.offset != read or record.value != b"%d" % read:
                            wrong = f"at {read}: offset {record.offset}, value {record.value!r}"
                            return
                        read += 1
        except rollbook.RollbookError as error:
            print(f"again {type(error).__name__}", flush=True)
            time.sleep(0.2)


def report() -> None:
    shown = (0, 0)
    while True:
        if (acked, read) != shown:
            shown = (acked, read)
            print(*shown, flush=True)
        time.sleep(0.1)


def main(log_name: str, offset: int) -> None:
    """The writer continues at `offset`. The tailer reads everything."""
    global acked
    acked = offset
    writer = threading.Thread(target=write, args=(log_name,), daemon=True)
    writer.start()
    threading.Thread(target=tail, args=(log_name,), daemon=True).start()
    threading.Thread(target=report, daemon=True).start()
    sys.stdin.read()
    stopping.set()
    writer.join(END_TIMEOUT_S)
    deadline = time.monotonic() + END_TIMEOUT_S
    while read < acked and not wrong and time.monotonic() < deadline:
        time.sleep(0.05)
    if not wrong and read != acked:
        print(f"wrong {acked} records are acknowledged, {read} were read", flush=True)
        sys.exit(1)
    print(f"wrong {wrong}" if wrong else f"done {acked}", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
