package main

// Needs `protoc`, and on PATH what `GOBIN=$PWD/bin go install tool` leaves in bin/.
//go:generate protoc -I ../protos --go_out=. --go_opt=module=rollbook --go-grpc_out=. --go-grpc_opt=module=rollbook rollbook/proto/v1/error.proto rollbook/proto/v1/log.proto rollbook/proto/v1/admin.proto
