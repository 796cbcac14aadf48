import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import rollbook.v1.*;

/** Appends lines to a log exactly once, reads them, and follows the log until it is sealed. */
public final class Example {
  static final Set<Code> RETRYABLE = Set.of(Code.UNAVAILABLE, Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.ABORTED);
  static final Metadata.Key<String> OWNER = Metadata.Key.of("log-owner", Metadata.ASCII_STRING_MARSHALLER);
  static final Duration SOON = Duration.ofSeconds(5);
  static final Map<String, ManagedChannel> channels = new HashMap<>();
  static List<String> servers;
  static int turn = 0;
  static String owner; // As NOT_OWNER named it.
  static long next = 0; // The offset to read next.
  static boolean isEnded;

  /** Makes a call until it succeeds: at the owner if it is known, otherwise at each server in turn. */
  static void retried(Consumer<ManagedChannel> call) throws InterruptedException {
    for (; ; Thread.sleep(50)) {
      String address = owner != null ? owner : servers.get(turn % servers.size());
      try {
        call.accept(channels.computeIfAbsent(address, it -> ManagedChannelBuilder.forTarget(it).usePlaintext().build()));
        return;
      } catch (StatusRuntimeException error) {
        Code code = error.getStatus().getCode();
        if (code == Code.ALREADY_EXISTS) return; // In the log, though its offset is forgotten.
        if (!RETRYABLE.contains(code)) throw error;
        owner = error.getTrailers() == null ? null : error.getTrailers().get(OWNER);
        turn += 1;
      }
    }
  }

  /** Reads from `next` until the stream ends. */
  static void read(String log, AtTail atTail) throws InterruptedException {
    for (isEnded = false; !isEnded; ) {
      retried(channel -> {
        var request = ReadStreamRequest.newBuilder().setLog(log).setStart(String.valueOf(next));
        request.setAtTail(atTail).setAsRecords(true);
        LogServiceGrpc.newBlockingStub(channel).readStream(request.build()).forEachRemaining(event -> {
          for (var record : event.getRecords().getRecordsList()) {
            System.out.println("record " + record.getOffset() + " " + record.getValue().toStringUtf8());
            next = record.getOffset() + 1;
          }
          isEnded = event.hasStopped() || event.hasSealed();
        }); // After Stopped, Sealed, or Moving: another server goes on.
      });
    }
  }

  /** Takes HOST:PORT,HOST:PORT NAMESPACE/LOG PRODUCER COUNT. */
  public static void main(String[] arguments) throws InterruptedException {
    servers = List.of(arguments[0].split(","));
    String log = arguments[1];
    var ensure = EnsureLogRequest.newBuilder().setLog(log).build();
    retried(channel -> LogAdminGrpc.newBlockingStub(channel).withDeadlineAfter(SOON).ensureLog(ensure));
    var producer = ProducerRef.newBuilder().setId(ByteString.copyFromUtf8(arguments[2]));
    for (long number = 0; number < Long.parseLong(arguments[3]); number += 1) {
      var line = rollbook.v1.Record.newBuilder().setValue(ByteString.copyFromUtf8("line " + number));
      var batch = AppendRequest.newBuilder().setLog(log).addRecords(line).setProducer(producer.setSeq(number)).build();
      // Repeated with its number, a batch is in the log once.
      retried(channel -> LogServiceGrpc.newBlockingStub(channel).withDeadlineAfter(SOON).append(batch));
      System.out.println("append " + number);
    }
    read(log, AtTail.AT_TAIL_STOP_AT_BARRIER);
    System.out.println("tail " + next);
    read(log, AtTail.AT_TAIL_FOLLOW);
    System.out.println("end " + next);
  }
}
