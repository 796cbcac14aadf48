// Appends lines exactly once, reads them, and follows: go run . HOST:PORT,… NAMESPACE/LOG PRODUCER COUNT
package main

import (
	"cmp"
	"context"
	"fmt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"io"
	"log"
	"os"
	pb "rollbook/proto/v1"
	"strings"
	"time"
)

var servers, channels = strings.Split(os.Args[1], ","), map[string]*grpc.ClientConn{}
var turn, owner = 0, "" // owner: as NOT_OWNER named it.
var retryable = map[codes.Code]bool{codes.Unavailable: true, codes.Unknown: true, codes.DeadlineExceeded: true, codes.ResourceExhausted: true, codes.Aborted: true}

// Makes a call until it succeeds: at the owner if it is known, otherwise at each server in turn.
func retried(within time.Duration, call func(context.Context, *grpc.ClientConn, grpc.CallOption) (any, error)) {
	for ; ; time.Sleep(50 * time.Millisecond) {
		address, trailer := cmp.Or(owner, servers[turn%len(servers)]), metadata.MD{}
		if channels[address] == nil {
			channels[address], _ = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		}
		ctx, cancel := context.WithTimeout(context.Background(), within)
		_, err := call(ctx, channels[address], grpc.Trailer(&trailer))
		cancel()
		if err == nil || err == io.EOF || status.Code(err) == codes.AlreadyExists { // In the log, though its offset is forgotten.
			return
		} else if !retryable[status.Code(err)] {
			log.Fatal(err)
		}
		owner, turn = strings.Join(trailer.Get("log-owner"), ""), turn+1
	}
}

// Reads from an offset until the stream ends, and returns the next offset.
func read(name string, next uint64, atTail pb.AtTail) uint64 {
	for ended := false; !ended; { // After Moving, another server goes on.
		retried(time.Hour, func(ctx context.Context, channel *grpc.ClientConn, trailer grpc.CallOption) (any, error) {
			request := &pb.ReadStreamRequest{Log: name, Start: fmt.Sprint(next), AtTail: atTail, AsRecords: true}
			stream, err := pb.NewLogServiceClient(channel).ReadStream(ctx, request, trailer)
			for event := (*pb.ReadEvent)(nil); err == nil; event, err = stream.Recv() {
				for _, record := range event.GetRecords().GetRecords() {
					fmt.Printf("record %d %s\n", record.Offset, record.Value)
					next = record.Offset + 1
				}
				ended = event.GetStopped() != nil || event.GetSealed() != nil
			}
			return nil, err
		})
	}
	return next
}

func main() {
	name, producer := os.Args[2], []byte(os.Args[3])
	retried(5*time.Second, func(ctx context.Context, channel *grpc.ClientConn, trailer grpc.CallOption) (any, error) {
		return pb.NewLogAdminClient(channel).EnsureLog(ctx, &pb.EnsureLogRequest{Log: name}, trailer)
	})
	for number := uint64(0); fmt.Sprint(number) != os.Args[4]; number++ { // Repeated with its number, a batch is in the log once.
		batch := &pb.AppendRequest{Log: name, Records: []*pb.Record{{Value: fmt.Appendf(nil, "line %d", number)}}, Producer: &pb.ProducerRef{Id: producer, Seq: number}}
		retried(5*time.Second, func(ctx context.Context, channel *grpc.ClientConn, trailer grpc.CallOption) (any, error) {
			return pb.NewLogServiceClient(channel).Append(ctx, batch, trailer)
		})
		fmt.Println("append", number)
	}
	next := read(name, 0, pb.AtTail_AT_TAIL_STOP_AT_BARRIER)
	fmt.Println("tail", next)
	fmt.Println("end", read(name, next, pb.AtTail_AT_TAIL_FOLLOW)) // When somebody seals the log.
}
