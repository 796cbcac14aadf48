"""The interfaces for users and operators: clients, gRPC, HTTP, command line, dashboard, Spark."""
