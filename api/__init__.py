"""What users and operators meet: clients, gRPC, HTTP, command line, dashboard, Spark."""
