"""The program of the profile `example` of compose.yaml: `write` appends numbers exactly once, `tail` checks them.

The value of each record is its offset, so a lost, repeated or misplaced record is seen at once; then `tail` ends with exit code 1.
`write` may be killed and started again at any time: it goes on where the log ends.
"""

import os
import sys
import time

import rollbook

LOG = "default/example"
RECORDS = 10  # Of a batch. A batch is appended as a whole or not at all.
PAUSE_S = 0.1
REPORT_EVERY_S = 10.0


def connect() -> rollbook.Client:
    authorities = os.environ.get("EXAMPLE_AUTHORITIES", "")  # With TLS; then all servers are `log`.
    return rollbook.connect(
        os.environ["EXAMPLE_SERVER"],
        authorities=authorities,
        token_file=os.environ.get("EXAMPLE_TOKEN_FILE", ""),
        tls_name="log" if authorities else "",
        wait_s=60,
    )


class Progress:
    def __init__(self, what: str) -> None:
        self._what, self._at = what, 0.0

    def report(self, records: int) -> None:
        if time.monotonic() >= self._at:
            print(f"{records} records {self._what}", flush=True)
            self._at = time.monotonic() + REPORT_EVERY_S


class Writer:
    def __init__(self) -> None:
        self._progress = Progress("appended")

    def run(self) -> None:
        with connect() as client:
            log = client.open(LOG, create=True)
            number = log.tail_offset("barrier") // RECORDS
            while True:
                values = [b"%d" % (number * RECORDS + row) for row in range(RECORDS)]
                # A batch that was appended although its ack was lost is recognised by its number.
                log.append_many(values, producer=rollbook.ProducerRef(b"example", 0, number))
                number += 1
                self._progress.report(number * RECORDS)
                time.sleep(PAUSE_S)


class Tailer:
    def __init__(self) -> None:
        self._progress = Progress("read in order")
        self._position = 0

    def run(self) -> None:
        with connect() as client:
            for batch in client.open(LOG, create=True).tail_batches(self._position):
                for record in batch.records():
                    if record.offset != self._position or record.value != b"%d" % record.offset:
                        sys.exit(f"at {self._position}: {record.offset}, {record.value!r}")
                    self._position += 1
                self._progress.report(self._position)


def main(what: str) -> None:
    role = Writer() if what == "write" else Tailer()
    while True:
        try:
            role.run()
        except rollbook.RollbookError as error:  # The client has retried for a while.
            print(f"again: {error}", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
