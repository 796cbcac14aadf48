// Appends lines to a log exactly once, reads them, and follows the log until it is sealed:
// node main.js HOST:PORT,HOST:PORT NAMESPACE/LOG PRODUCER COUNT
import { setTimeout as pause } from "node:timers/promises";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const [addresses, log, producer, count] = process.argv.slice(2);
const servers = addresses.split(",");
const protos = ["rollbook/proto/v1/log.proto", "rollbook/proto/v1/admin.proto"];
const includeDirs = [new URL("../protos", import.meta.url).pathname];
const loaded = loader.loadSync(protos, { includeDirs, enums: String, longs: Number, defaults: true });
const { LogService, LogAdmin } = grpc.loadPackageDefinition(loaded).rollbook.v1;
const clients = {};
let turn = 0;
let owner; // As NOT_OWNER named it.

const { UNAVAILABLE, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, ALREADY_EXISTS } = grpc.status;
const retryable = [UNAVAILABLE, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED];

// Makes a call until it succeeds: at the owner if it is known, otherwise at each server in turn.
async function retried(Service, call) {
  for (; ; await pause(50)) {
    const address = owner ?? servers[turn % servers.length];
    const client = (clients[Service.serviceName + address] ??= new Service(address, grpc.credentials.createInsecure()));
    try {
      return await call(client);
    } catch (error) {
      if (error.code === ALREADY_EXISTS) return; // In the log, though its offset is forgotten.
      if (!retryable.includes(error.code)) throw error;
      owner = error.metadata?.get("log-owner")[0];
      turn += 1;
    }
  }
}

// Makes one call of a method that answers once, within 5 s.
function once(client, method, request) {
  return new Promise((resolve, reject) =>
    client[method](request, { deadline: Date.now() + 5000 }, (error, answer) => (error ? reject(error) : resolve(answer))),
  );
}

// Reads from an offset until the stream ends, and returns the next offset.
async function read(next, atTail) {
  for (let ended = false; !ended; ) {
    await retried(LogService, async (client) => {
      for await (const event of client.ReadStream({ log, start: String(next), atTail, asRecords: true })) {
        for (const record of event.records?.records ?? []) {
          console.log("record", record.offset, record.value.toString());
          next = record.offset + 1;
        }
        ended = Boolean(event.stopped || event.sealed);
      } // After Stopped, Sealed, or Moving: another server goes on.
    });
  }
  return next;
}

await retried(LogAdmin, (client) => once(client, "EnsureLog", { log }));
for (let number = 0; number < Number(count); number += 1) {
  const records = [{ value: Buffer.from(`line ${number}`) }];
  const request = { log, records, producer: { id: Buffer.from(producer), seq: number } };
  await retried(LogService, (client) => once(client, "Append", request)); // Repeated with its number: in the log once.
  console.log("append", number);
}
const tail = await read(0, "AT_TAIL_STOP_AT_BARRIER");
console.log("tail", tail);
console.log("end", await read(tail, "AT_TAIL_FOLLOW"));
process.exit(0); // Connections would keep the program alive.
