"""What lies in metadata nodes, byte for byte as BookKeeper's own encoders write it.

Members are 127.0.0.1:3181 to :3183, ensemble 3, write and ack quorum 2, digest CRC32C; the values
that belong to these bytes stand in the tests.
"""

from typing import Final

OPEN_V3: Final = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a7608021003180020ffffffffffff"
    "ffffff01280132320a0e3132372e302e302e313a333138310a0e3132372e302e302e313a333138320a0e3132"
    "372e302e302e313a3331383310003803420a7465737450617373776448025a130a0b6170706c69636174696f"
    "6e12047079646c609582a6efc79e849111"
)
IN_RECOVERY_V3: Final = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a6e08021003180020ffffffffffff"
    "ffffff01280232320a0e3132372e302e302e313a333138310a0e3132372e302e302e313a333138320a0e3132"
    "372e302e302e313a3331383310003803420a7465737450617373776448025a130a0b6170706c69636174696f"
    "6e12047079646c6000"
)
CLOSED_V3: Final = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a82010802100318e8072009280332"
    "320a0e3132372e302e302e313a333138310a0e3132372e302e302e313a333138320a0e3132372e302e302e31"
    "3a33313833100032320a0e3132372e302e302e313a333138340a0e3132372e302e302e313a333138320a0e31"
    "32372e302e302e313a3331383310053803420048025080d095ffbc316000"
)
SERVICE_INFO: Final = bytes.fromhex(
    "32220a06626f6f6b696510ed181a093132372e302e302e31220a626f6f6b69652d727063"
)
SERVICE_INFO_HTTP: Final = bytes.fromhex(
    "32220a06626f6f6b696510ed181a093132372e302e302e31220a626f6f6b69652d727063321e0a0a68747470"
    "73657276657210903f1a07302e302e302e302204687474703a0e0a04696d706c1206707974686f6e"
)
CHECKED_AT: Final = bytes.fromhex("0880d095ffbc31")

OPEN_V1: Final = (
    b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\t127.0.0.1:3181\t127.0.0.1:3182\t127.0.0.1:3183\n"
)
IN_RECOVERY_V1: Final = OPEN_V1 + b"-102\tCLOSED"
CLOSED_V1: Final = (
    b"BookieMetadataFormatVersion\t1\n2\n3\n1000\n"
    b"0\t127.0.0.1:3181\t127.0.0.1:3182\t127.0.0.1:3183\n"
    b"5\t127.0.0.1:3184\t127.0.0.1:3182\t127.0.0.1:3183\n"
    b"9\tCLOSED"
)
OPEN_V2: Final = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 0
lastEntryId: -1
state: OPEN
segment {
  ensembleMember: "127.0.0.1:3181"
  ensembleMember: "127.0.0.1:3182"
  ensembleMember: "127.0.0.1:3183"
  firstEntryId: 0
}
digestType: CRC32C
password: "testPasswd"
ackQuorumSize: 2
customMetadata {
  key: "application"
  value: "pydl"
}
"""

LAYOUT_HIERARCHICAL: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
LAYOUT_LONG: Final = b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1"
LAYOUT_LEGACY: Final = b"2\norg.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory:1"
LAYOUT_FLAT: Final = b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"
INSTANCE_ID: Final = b"3f0c8a52-5d0f-4f3f-9f5e-0a1b2c3d4e5f"

COOKIE: Final = rb"""5
bookieHost: "127.0.0.1:3181"
journalDir: "/data/journal"
ledgerDirs: "2\t/data/l1\t/data/l2"
instanceId: "3f0c8a52-5d0f-4f3f-9f5e-0a1b2c3d4e5f"
"""
COOKIE_V3: Final = b"3\n127.0.0.1:3181\n/data/journal\n2\t/data/l1\t/data/l2\n"

MARK: Final = b"""replica: "127.0.0.1:3181"
replica: "127.0.0.1:3182"
ctime: 1700000000000
"""
REPLICATION_LAYOUT: Final = b"""type: "BASIC"
version: 1
"""
VOTE: Final = b"""bookieId: "127.0.0.1:3181"
"""

MARK_PATHS: Final = {
    12345: "0000/0000/0000/3039/urL0000012345",
    5403966536597700333: "4afe/beef/0000/feed/urL5403966536597700333",
}
LEDGER_PATHS: Final = {
    0: "00/0000/L0000",
    12345: "00/0001/L2345",
    2147483646: "21/4748/L3646",
    2147483647: "000/0000/0021/4748/L3647",
    9223372036854775807: "922/3372/0368/5477/L5807",
}
