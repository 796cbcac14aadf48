import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * The unmodified client of Apache BookKeeper under load: one job a line, its figures in the answer.
 *
 * <p>A line in is {@code {"do": "adds", "client": "v2", ...}}; the line out {@code {"value": {...}}}
 * or {@code {"error": "..."}}. Seconds are wall time of the job alone, {@code cpu_s} is that of the
 * whole process meanwhile, and latencies are in nanoseconds from the call to the callback. Jobs run
 * one after another; the end of input ends the process.
 */
public final class Peer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.US_ASCII);

    private final Map<String, BookKeeper> clients = new LinkedHashMap<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Peer peer = new Peer();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer;
            try {
                answer = Map.of("value", peer.run(JSON.readTree(line)));
            } catch (Exception error) {
                answer = Map.of("error", error.toString());
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        System.exit(0);
    }

    private Map<String, Object> run(JsonNode job) throws Exception {
        return switch (job.get("do").asText()) {
            case "connect" -> connect(job);
            case "adds" -> adds(job);
            case "read" -> read(job);
            case "recover" -> recover(job);
            case "recover_idle" -> recoverIdle(job);
            case "tail" -> tail(job);
            default -> throw new IllegalArgumentException(job.toString());
        };
    }

    private Map<String, Object> connect(JsonNode job) throws Exception {
        ClientConfiguration config = new ClientConfiguration();
        job.get("properties").fields().forEachRemaining(
                property -> config.setProperty(property.getKey(), property.getValue().asText()));
        clients.put(job.get("client").asText(), new BookKeeper(config));
        return Map.of();
    }

    private BookKeeper client(JsonNode job) {
        return clients.get(job.get("client").asText());
    }

    private LedgerHandle create(JsonNode job) throws Exception {
        return client(job).createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD);
    }

    /** A window of adds under way, for a time or for a count, whichever ends first. */
    private Map<String, Object> adds(JsonNode job) throws Exception {
        try (LedgerHandle ledger = create(job)) {
            return write(ledger, job);
        }
    }

    private static Map<String, Object> write(LedgerHandle ledger, JsonNode job) throws Exception {
        byte[] payload = payload(job);
        int window = job.get("window").asInt();
        int count = job.get("count").asInt();
        long end = System.nanoTime() + (long) (job.get("seconds").asDouble() * 1e9);
        long[] latencies = new long[count];
        Semaphore free = new Semaphore(window);
        AtomicInteger failed = new AtomicInteger();
        AtomicInteger failure = new AtomicInteger();  // The first one's code.
        long cpu = cpuNanos();
        long start = System.nanoTime();
        int sent = 0;
        for (; sent < count && (sent % 64 != 0 || System.nanoTime() < end); sent++) {
            free.acquire();
            if (failure.get() != 0) {
                free.release();
                break;  // A ledger that has failed takes no more, and says so a million times a second.
            }
            int number = sent;
            long from = System.nanoTime();
            ledger.asyncAddEntry(payload, (code, handle, entry, context) -> {
                latencies[number] = System.nanoTime() - from;
                if (code != 0) {
                    failure.compareAndSet(0, code);
                    failed.incrementAndGet();
                }
                free.release();
            }, null);
        }
        free.acquire(window);
        double seconds = (System.nanoTime() - start) / 1e9;
        double cpuSeconds = (cpuNanos() - cpu) / 1e9;
        if (failed.get() > 0) {
            throw new IllegalStateException(
                    failed.get() + " of " + sent + " adds to ledger " + ledger.getId()
                            + " failed, the first one with: " + BKException.getMessage(failure.get()));
        }
        return figures(seconds, cpuSeconds, latencies, sent, ledger.getId());
    }

    /** All of a closed ledger, some requests open at a time, in batches or entry by entry. */
    private Map<String, Object> read(JsonNode job) throws Exception {
        boolean batched = job.get("batched").asBoolean();
        int requests = job.get("requests").asInt();
        int atATime = job.get("entries").asInt();
        int bytesMax = job.get("bytes").asInt();
        try (LedgerHandle ledger = client(job).openLedgerNoRecovery(
                job.get("ledger").asLong(), BookKeeper.DigestType.CRC32C, PASSWORD)) {
            long last = ledger.getLastAddConfirmed();
            AtomicLong next = new AtomicLong();
            AtomicLong bytes = new AtomicLong();
            AtomicLong entries = new AtomicLong();
            AtomicInteger failed = new AtomicInteger();
            CountDownLatch done = new CountDownLatch(requests);
            long cpu = cpuNanos();
            long start = System.nanoTime();
            for (int lane = 0; lane < requests; lane++) {
                Thread thread = new Thread(() -> {
                    try {
                        for (long first = next.getAndAdd(atATime); first <= last;
                                first = next.getAndAdd(atATime)) {
                            long to = Math.min(last, first + atATime - 1);
                            while (first <= to) {  // A batch may bring less than was asked for.
                                try (LedgerEntries found = batched
                                        ? ledger.batchReadAsync(first, (int) (to - first + 1), bytesMax).get()
                                        : ledger.readAsync(first, to).get()) {
                                    for (var entry : found) {
                                        bytes.addAndGet(entry.getEntryBuffer().readableBytes());
                                        entries.incrementAndGet();
                                        first = entry.getEntryId() + 1;
                                    }
                                }
                            }
                        }
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    } finally {
                        done.countDown();
                    }
                });
                thread.start();
            }
            done.await();
            double seconds = (System.nanoTime() - start) / 1e9;
            if (failed.get() > 0 || entries.get() != last + 1) {
                throw new IllegalStateException("read " + entries + " of " + (last + 1));
            }
            return Map.of("seconds", seconds, "cpu_s", (cpuNanos() - cpu) / 1e9,
                    "bytes", bytes.get(), "entries", entries.get());
        }
    }

    /** Opens a ledger that was left open, which fences, recovers and closes it. */
    private Map<String, Object> recover(JsonNode job) throws Exception {
        long cpu = cpuNanos();
        long start = System.nanoTime();
        try (LedgerHandle ledger = client(job).openLedger(
                job.get("ledger").asLong(), BookKeeper.DigestType.CRC32C, PASSWORD)) {
            return Map.of("seconds", (System.nanoTime() - start) / 1e9,
                    "cpu_s", (cpuNanos() - cpu) / 1e9, "last", ledger.getLastAddConfirmed());
        }
    }

    /** The same where nothing is to be recovered: ten entries, all confirmed, the writer gone. */
    private Map<String, Object> recoverIdle(JsonNode job) throws Exception {
        int count = job.get("count").asInt();
        long[] times = new long[count];
        for (int round = 0; round < count; round++) {
            LedgerHandle writer = create(job);
            for (int entry = 0; entry < 10; entry++) {
                writer.addEntry(payload(job));
            }
            long start = System.nanoTime();
            client(job).openLedger(writer.getId(), BookKeeper.DigestType.CRC32C, PASSWORD).close();
            times[round] = System.nanoTime() - start;
        }
        return figures(0, 0, times, count, -1);
    }

    /** From the append to a long-polling reader in the same process, at a steady pace. */
    private Map<String, Object> tail(JsonNode job) throws Exception {
        int count = job.get("count").asInt();
        long pause = (long) (1e9 / job.get("rate").asDouble());
        long[] sent = new long[count];
        long[] latencies = new long[count];
        byte[] payload = payload(job);
        AtomicReference<Exception> failure = new AtomicReference<>();
        LedgerHandle writer = create(job);
        ReadHandle reader = client(job).newOpenLedgerOp().withLedgerId(writer.getId())
                .withPassword(PASSWORD).withDigestType(DigestType.CRC32C)
                .withRecovery(false).execute().get();
        Thread tailing = new Thread(() -> {
            try {
                long next = 0;
                while (next < count) {
                    try (LastConfirmedAndEntry found = reader
                            .readLastAddConfirmedAndEntryAsync(next, 1_000, true).get()) {
                        long confirmed = found.getLastAddConfirmed();
                        if (found.hasEntry() && found.getEntry().getEntryId() == next) {
                            latencies[(int) next] = System.nanoTime() - sent[(int) next];
                            next++;
                        }
                        if (next <= confirmed) {  // What the poll did not bring along.
                            try (LedgerEntries more = reader.readAsync(next, confirmed).get()) {
                                for (var entry : more) {
                                    latencies[(int) next] = System.nanoTime() - sent[(int) next];
                                    next++;
                                }
                            }
                        }
                    }
                }
            } catch (Exception error) {
                failure.set(error);
            }
        });
        tailing.start();
        long cpu = cpuNanos();
        long start = System.nanoTime();
        for (int number = 0; number < count; number++) {
            while (System.nanoTime() < start + number * pause) {
                Thread.sleep(0, 100_000);
            }
            sent[number] = System.nanoTime();
            writer.asyncAddEntry(payload, (code, handle, entry, context) -> { }, null);
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        Thread.sleep(100);
        writer.addEntry(payload);  // Without one more the reader never hears of the last.
        tailing.join(30_000);
        if (failure.get() != null || tailing.isAlive()) {  // Else what it never heard took no time.
            throw new IllegalStateException("the tailing reader did not hear of all: " + failure.get());
        }
        double cpuSeconds = (cpuNanos() - cpu) / 1e9;
        writer.close();
        return figures(seconds, cpuSeconds, latencies, count, writer.getId());
    }

    private static byte[] payload(JsonNode job) {
        byte[] payload = new byte[job.get("size").asInt()];
        Arrays.fill(payload, (byte) 'x');
        return payload;
    }

    private static Map<String, Object> figures(
            double seconds, double cpuSeconds, long[] all, int count, long ledger) {
        long[] latencies = Arrays.copyOf(all, count);
        Arrays.sort(latencies);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("seconds", seconds);
        found.put("cpu_s", cpuSeconds);
        found.put("count", count);
        found.put("ledger", ledger);
        found.put("p50_ns", at(latencies, 0.5));
        found.put("p99_ns", at(latencies, 0.99));
        found.put("p999_ns", at(latencies, 0.999));
        return found;
    }

    private static long at(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1, sorted.length * share)];
    }

    private static long cpuNanos() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }
}
