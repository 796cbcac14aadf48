import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.StreamSupport;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookieProtocol;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/**
 * The unmodified client of Apache BookKeeper on strings: it does what it is told and judges nothing.
 *
 * <p>A line in is {@code {"id": 7, "do": "append", ...}}; the line out is {@code {"id": 7, "value":
 * ...}} or {@code {"id": 7, "error": "BKLedgerFencedException", "text": ...}}. Each command has a
 * thread of its own, so one that waits holds up no other. The end of input ends the process.
 */
public final class Puppet {
    private static final ObjectMapper JSON = new ObjectMapper();

    private interface Verb {
        Object run(JsonNode in) throws Exception;
    }

    private record Session(BookKeeper client, BookKeeperAdmin admin) {}

    private final Map<String, Session> sessions = new ConcurrentHashMap<>();
    private final Map<Integer, LedgerHandle> handles = new ConcurrentHashMap<>();
    private final AtomicInteger nextHandle = new AtomicInteger();

    private final Map<String, Verb> verbs = Map.ofEntries(
            Map.entry("connect", this::connect),
            Map.entry("bookies", this::bookies),
            Map.entry("ledgers", in -> listed(session(in).admin.listLedgers())),
            Map.entry("disk_bytes", this::diskBytes),
            Map.entry("entries_on", this::entriesOn),
            Map.entry("replace_bookie", this::replaceBookie),
            Map.entry("fence_one", this::fenceOne),
            Map.entry("shell", this::shell),
            Map.entry("create", this::create),
            Map.entry("open", this::open),
            Map.entry("delete", this::delete),
            Map.entry("metadata", this::metadata),
            Map.entry("append", this::append),
            Map.entry("write", this::write),
            Map.entry("force", in -> handle(in).force().get()),
            Map.entry("close", in -> handle(in).closeAsync().get()),
            Map.entry("read", this::read),
            Map.entry("read_last_confirmed", in -> handle(in).readLastConfirmed()),
            Map.entry("read_explicit_last_confirmed", in -> handle(in).readExplicitLastConfirmed()),
            Map.entry("await_entry", this::awaitEntry));

    // --- A cluster --------------------------------------------------------------------------------

    private Object connect(JsonNode in) throws Exception {
        ClientConfiguration config = new ClientConfiguration();
        in.get("properties").fields().forEachRemaining(
                property -> config.setProperty(property.getKey(), property.getValue().asText()));
        BookKeeper client = new BookKeeper(config);
        BookKeeperAdmin admin = new BookKeeperAdmin(client, config);
        sessions.put(in.get("client").asText(), new Session(client, admin));
        return null;
    }

    private Object bookies(JsonNode in) throws Exception {
        BookKeeperAdmin admin = session(in).admin;
        return Map.of(
                "writable", names(admin.getAvailableBookies()),
                "read_only", names(admin.getReadOnlyBookies()),
                "all", names(admin.getAllBookies()));
    }

    private Object diskBytes(JsonNode in) throws Exception {
        Map<String, Object> found = new ConcurrentHashMap<>();
        session(in).client.getBookieInfo().forEach((bookie, info) -> found.put(
                bookie.toString(),
                Map.of("free", info.getFreeDiskSpace(), "total", info.getTotalDiskSpace())));
        return found;
    }

    /** Which of the entries up to {@code last} a bookie says it has. */
    private Object entriesOn(JsonNode in) throws Exception {
        AvailabilityOfEntriesOfLedger availability = session(in).admin
                .asyncGetListOfEntriesOfLedger(
                        BookieId.parse(in.get("bookie").asText()), in.get("ledger").asLong())
                .get();
        List<Long> found = new ArrayList<>();
        for (long entry = 0; entry <= in.get("last").asLong(); entry++) {
            if (availability.isEntryAvailable(entry)) {
                found.add(entry);
            }
        }
        return Map.of("entries", found, "total", availability.getTotalNumOfAvailableEntries());
    }

    /** Copies what a lost bookie had of a ledger, and writes its successor into the metadata. */
    private Object replaceBookie(JsonNode in) throws Exception {
        Set<BookieId> lost = Set.of(BookieId.parse(in.get("bookie").asText()));
        session(in).admin.recoverBookieData(in.get("ledger").asLong(), lost, false, false);
        return null;
    }

    /** A fencing read of one bookie, by whoever knows or guesses the ledger's password. */
    private Object fenceOne(JsonNode in) throws Exception {
        byte[] key = DigestManager.generateMasterKey(password(in));
        CompletableFuture<Object> answer = new CompletableFuture<>();
        session(in).client.getClientCtx().getBookieClient().readEntry(
                BookieId.parse(in.get("bookie").asText()),
                in.get("ledger").asLong(),
                in.get("entry").asLong(),
                (code, ledger, entry, content, context) -> {
                    if (code == BKException.Code.OK) {
                        answer.complete(content.readableBytes());
                    } else {
                        answer.completeExceptionally(BKException.create(code));
                    }
                },
                null,
                BookieProtocol.FLAG_DO_FENCING,
                key);
        return answer.get();
    }

    /** A command of {@code bookkeeper shell}; its exit code. What it says is not shown. */
    private Object shell(JsonNode in) throws Exception {
        ServerConfiguration config = new ServerConfiguration();
        config.loadConf(new File(in.get("config").asText()).toURI().toURL());
        BookieShell shell = new BookieShell();
        shell.setConf(config);
        List<String> words = new ArrayList<>();
        in.get("words").forEach(word -> words.add(word.asText()));
        return shell.run(words.toArray(String[]::new));
    }

    // --- A ledger ---------------------------------------------------------------------------------

    private Object create(JsonNode in) throws Exception {
        EnumSet<WriteFlag> flags = in.get("deferred_sync").asBoolean()
                ? EnumSet.of(WriteFlag.DEFERRED_SYNC)
                : WriteFlag.NONE;
        CreateBuilder creation = session(in).client.newCreateLedgerOp()
                .withEnsembleSize(in.get("ensemble").asInt())
                .withWriteQuorumSize(in.get("write").asInt())
                .withAckQuorumSize(in.get("ack").asInt())
                .withDigestType(DigestType.valueOf(in.get("digest").asText()))
                .withPassword(password(in))
                .withWriteFlags(flags);
        Object ledger = in.get("numbered").asBoolean()
                ? creation.makeAdv().execute().get()
                : creation.execute().get();
        return held((LedgerHandle) ledger);
    }

    private Object open(JsonNode in) throws Exception {
        BookKeeper client = session(in).client;
        long ledger = in.get("ledger").asLong();
        BookKeeper.DigestType digest = BookKeeper.DigestType.valueOf(in.get("digest").asText());
        return held(in.get("recover").asBoolean()
                ? client.openLedger(ledger, digest, password(in))
                : client.openLedgerNoRecovery(ledger, digest, password(in)));
    }

    private Object delete(JsonNode in) throws Exception {
        session(in).client.deleteLedger(in.get("ledger").asLong());
        return null;
    }

    private Object metadata(JsonNode in) throws Exception {
        LedgerMetadata metadata =
                session(in).client.getLedgerMetadata(in.get("ledger").asLong()).get();
        List<Object> fragments = new ArrayList<>();
        metadata.getAllEnsembles().forEach((first, ensemble) -> fragments.add(
                Map.of("first", first, "ensemble", names(ensemble))));
        return Map.of(
                "state", metadata.getState().toString(),
                "last_entry", metadata.getLastEntryId(),
                "length", metadata.getLength(),
                "fragments", fragments);
    }

    /** Sends all of them before it waits for the first. */
    private Object append(JsonNode in) throws Exception {
        LedgerHandle ledger = handle(in);
        List<CompletableFuture<Long>> sent = new ArrayList<>();
        for (JsonNode payload : in.get("payloads")) {
            sent.add(ledger.appendAsync(bytes(payload)));
        }
        return results(sent);
    }

    /** As append, but the caller says which entry each payload becomes. */
    private Object write(JsonNode in) throws Exception {
        WriteAdvHandle ledger = (WriteAdvHandle) handle(in);
        List<CompletableFuture<Long>> sent = new ArrayList<>();
        for (int i = 0; i < in.get("entries").size(); i++) {
            long entry = in.get("entries").get(i).asLong();
            sent.add(ledger.writeAsync(entry, bytes(in.get("payloads").get(i))));
        }
        return results(sent);
    }

    private static List<Long> results(List<CompletableFuture<Long>> sent) throws Exception {
        List<Long> entries = new ArrayList<>();
        for (CompletableFuture<Long> add : sent) {
            entries.add(add.get());
        }
        return entries;
    }

    private Object read(JsonNode in) throws Exception {
        LedgerHandle ledger = handle(in);
        long first = in.get("first").asLong();
        long last = in.get("last").asLong();
        int count = (int) (last - first + 1);
        CompletableFuture<LedgerEntries> reading = switch (in.get("how").asText()) {
            case "confirmed" -> ledger.readAsync(first, last);
            case "unconfirmed" -> ledger.readUnconfirmedAsync(first, last);
            case "batch" -> ledger.batchReadAsync(first, count, in.get("bytes_max").asLong());
            default -> throw new IllegalArgumentException("how: " + in.get("how"));
        };
        try (LedgerEntries entries = reading.get()) {
            return StreamSupport.stream(entries.spliterator(), false).map(Puppet::entry).toList();
        }
    }

    private Object awaitEntry(JsonNode in) throws Exception {
        try (LastConfirmedAndEntry found = handle(in).readLastAddConfirmedAndEntryAsync(
                in.get("entry").asLong(), in.get("timeout_ms").asLong(), in.get("parallel").asBoolean())
                .get()) {
            List<Object> entries = found.hasEntry() ? List.of(entry(found.getEntry())) : List.of();
            return Map.of("last_confirmed", found.getLastAddConfirmed(), "entries", entries);
        }
    }

    // --- Between JSON and the client --------------------------------------------------------------

    private Session session(JsonNode in) {
        return sessions.get(in.get("client").asText());
    }

    private LedgerHandle handle(JsonNode in) {
        return handles.get(in.get("handle").asInt());
    }

    private Object held(LedgerHandle ledger) {
        int number = nextHandle.incrementAndGet();
        handles.put(number, ledger);
        return Map.of(
                "handle", number,
                "ledger", ledger.getId(),
                "last_confirmed", ledger.getLastAddConfirmed(),
                "length", ledger.getLength());
    }

    private static Object entry(LedgerEntry entry) {
        return Map.of(
                "entry", entry.getEntryId(),
                "length", entry.getLength(),
                "payload", Base64.getEncoder().encodeToString(entry.getEntryBytes()));
    }

    private static byte[] bytes(JsonNode payload) {
        return Base64.getDecoder().decode(payload.asText());
    }

    private static byte[] password(JsonNode in) {
        return in.get("password").asText().getBytes(StandardCharsets.UTF_8);
    }

    private static List<String> names(Iterable<BookieId> bookies) {
        return StreamSupport.stream(bookies.spliterator(), false).map(BookieId::toString).toList();
    }

    private static List<Long> listed(Iterable<Long> ledgers) {
        return StreamSupport.stream(ledgers.spliterator(), false).toList();
    }

    private Map<String, Object> answer(JsonNode in) {
        JsonNode id = in.get("id");
        try {
            Object value = verbs.get(in.get("do").asText()).run(in);
            return value == null ? Map.of("id", id, "value", true) : Map.of("id", id, "value", value);
        } catch (Throwable thrown) {
            Throwable error = thrown;
            while ((error instanceof ExecutionException || error instanceof CompletionException)
                    && error.getCause() != null) {
                error = error.getCause();
            }
            String name = error.getClass().getSimpleName();
            return Map.of("id", id, "error", name, "text", String.valueOf(error.getMessage()));
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // Whatever a library prints is no answer.
        Puppet puppet = new Puppet();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode in = JSON.readTree(line);
            threads.submit(() -> {
                String text = JSON.writeValueAsString(puppet.answer(in));
                synchronized (out) {
                    out.println(text);
                    out.flush();
                }
                return null;
            });
        }
        System.exit(0); // Not in good order: what a test leaves open is left for others to recover.
    }
}
